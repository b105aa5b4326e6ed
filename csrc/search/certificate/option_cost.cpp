#include "search/certificate/option_cost.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "search/certificate/bound_cost.hpp"
#include "search/certificate/collective_cost.hpp"
#include "search/certificate/weight_in_slices.hpp"
#include "search/problem/validate.hpp"

namespace osdp::search {
namespace {

using Choice = PlainPlan::Choice;

int64_t divided(int64_t n, int64_t by) { return n / by + (n % by != 0); }

bool allows(const Request& request, Mode mode) {
  if (traits(mode).on_host && request.space.cost == Cost::Paper) return false;
  const auto& modes = request.space.modes;
  return std::find(modes.begin(), modes.end(), mode) != modes.end();
}

bool has_rows(const Tensor& t) { return t.shardable && t.bytes() > 0; }

// One option of one operator. Either the operator is unsplit and all its tensors are replicated or sharded,
// or its weight is split into slices and its other tensors are replicated.
class Columns {
 public:
  Columns(const Operator& op, const Request& request, Recompute recompute, Choice choice)
      : op_(op), request_(request), device_(request.device), recompute_(recompute), choice_(choice) {
    if (sliced()) in_slices_.emplace(op, choice);
  }

  OptionCost cost() const {
    OptionCost c;
    c.choice = choice_;
    c.state_bytes = sum([&](const Tensor& t) { return offloaded(t) ? 0 : state(t) + working_copy(t); });
    if (paper()) {
      c.micro_batch = StepShares::kWhole * static_cast<int128>(rounded_ps(paper_s(), op_.name));
      return c;
    }
    const int64_t away = updated_on_host();
    c.gradient_bytes = updated() - away - not_yet_cast();
    c.state_bytes -= not_yet_cast();
    c.own_phase_bytes = own_phase();
    c.left_bytes = left_after_it();
    if (op_.position.sees_left && sliced()) c.late_bytes = leaving_later();
    c.summed_bytes = summed_in_place();
    c.kept_bytes = traits(choice_.mode).kept ? gathered() : traits(choice_.mode).second ? from_hosts() : 0;
    // Gradients that autograd would add up, one until the operator's phase and two in it.
    if (sliced() && read_again() && weight().trainable) {
      const int64_t one = std::min(op_.waiting_gradient_bytes, weight().compute_bytes());
      const int64_t both = std::min(op_.waiting_gradient_bytes, 2 * weight().compute_bytes());
      c.kept_bytes -= one, c.own_phase_bytes -= both - one;
    }
    if (sliced() && op_.convolution) {  // its kernels copy a slice of the weight where they copied all of it
      const int64_t copied =
          std::min({std::max<int64_t>(0, op_.work_bytes_fixed - op_.waiting_gradient_bytes),
                    op_.backward_work_bytes_fixed, weight().compute_bytes()});
      const int64_t lines = in_slices_->lines, most = divided(lines, choice_.granularity);
      c.own_phase_bytes -= copied - in_slices_->part(copied, most);
    }
    c.held_bytes = held();
    if (kept_throughout()) {  // parameters, and the sum of their gradients beside this rank's part
      const int64_t more = summed();
      if (request_.space.stage.micro_batches == 2) {  // until the backward of the second
        c.kept_bytes += more;
      } else {
        c.state_bytes += gathered() + more;
        c.gradient_bytes += more, c.kept_bytes = 0;
      }
    }
    const double on_device = static_cast<double>(updated() - away) * device_.optimizer_s_per_byte;
    const double on_host = static_cast<double>(away) * device_.host.optimizer_s_per_byte;
    c.optimizer_ps = rounded_ps(on_device + on_host, op_.name);
    c.micro_batch = bound_cost(op_, request_, recompute_, choice_);
    return c;
  }

 private:
  bool paper() const { return request_.space.cost == Cost::Paper; }
  bool sliced() const { return choice_.granularity > 1; }
  bool whole() const { return choice_.mode == Mode::NoShard; }
  bool is_weight(const Tensor& t) const { return sliced() && &t == &op_.tensors[op_.split_tensor]; }
  const Tensor& weight() const { return op_.tensors[op_.split_tensor]; }
  int64_t slices() const { return choice_.sharded_slices; }
  // Ranks that share a sharded tensor.
  int64_t sharing() const {
    return traits(choice_.mode).inside_hosts ? device_.ranks / device_.hosts : device_.ranks;
  }
  // Tied parameters and those of a module that is called several times: docs/search.md.
  bool read_again() const { return op_.places > 1 || op_.calls > 1; }

  template <typename Bytes>
  int64_t sum(const Bytes& bytes) const {
    int64_t all = 0;
    for (const Tensor& t : op_.tensors) all += bytes(t);
    return all;
  }
  template <typename Bytes>
  int64_t sum_trained(const Bytes& bytes) const {
    return sum([&](const Tensor& t) { return t.trainable ? bytes(t) : 0; });
  }

  // --- memory kept on a rank

  // Parameter, gradient and optimizer state.
  int64_t state(const Tensor& t) const {
    const int64_t bytes = on_rank(t);
    if (!t.trainable) return bytes;
    const OptimizerState& kept = request_.space.optimizer;
    const int64_t elements = divided(bytes, t.item_bytes);
    if (elements < kept.small) return 2 * bytes + kept.small_item * elements;
    const int128 in_blocks = static_cast<int128>(elements) * kept.per_256;
    return (2 + kept.copies) * bytes + static_cast<int64_t>((in_blocks + 255) / 256);
  }
  // A rank's part of `rows` sharded rows.
  int64_t part(int64_t rows, int64_t row_bytes) const {
    return paper() ? divided(rows * row_bytes, sharing()) : divided(rows, sharing()) * row_bytes;
  }
  // Bytes of the tensor on the rank that holds most.
  int64_t on_rank(const Tensor& t) const {
    if (is_weight(t)) return sliced_part();
    return whole() || sliced() || !t.shardable ? t.bytes() : part(t.rows, t.row_bytes);
  }
  int64_t sliced_part() const {
    const int64_t element = weight().bytes() / (op_.out_features * op_.in_features);
    int64_t bytes = in_slices_->part(weight().bytes(), in_slices_->replicated);
    for (const int64_t lines : in_slices_->sharded) {
      const int64_t rows = in_slices_->of_rows ? lines : in_slices_->rows,
                    columns = in_slices_->of_rows ? in_slices_->columns : lines;
      bytes += weight().shardable ? part(rows, columns * element) : rows * columns * element;
    }
    return bytes;
  }
  // The copy in the compute dtype of a replicated tensor.
  int64_t working_copy(const Tensor& t) const {
    const bool other = t.compute_row_bytes != 0 && t.compute_row_bytes != t.row_bytes;
    return other && (whole() || (sliced() && !is_weight(t))) ? t.rows * t.compute_row_bytes : 0;
  }
  // Bytes of the parameters whose gradients this rank keeps.
  int64_t updated() const {
    return sum_trained([&](const Tensor& t) { return on_rank(t); });
  }

  // Whether this rank's part of it rests in host memory.
  bool offloaded(const Tensor& t) const {
    return traits(choice_.mode).on_host && (sliced() ? is_weight(t) : t.shardable);
  }
  int64_t updated_on_host() const {
    return sum_trained([&](const Tensor& t) { return offloaded(t) ? on_rank(t) : 0; });
  }

  // In a stage of a pipeline, from the first micro-batch to the last.
  bool kept_throughout() const {
    return traits(choice_.mode).kept && request_.space.stage.micro_batches > 1 && device_.ranks > 1;
  }
  int64_t summed() const {
    return sum_trained([](const Tensor& t) { return std::max(t.compute_bytes(), t.reduce_bytes()); });
  }

  // --- temporary memory

  int64_t gathered() const {
    return sum([](const Tensor& t) { return t.compute_bytes(); });
  }
  // The rows of the ranks in this one's place on every host.
  int64_t from_hosts() const {
    return sum([&](const Tensor& t) {
      if (!t.shardable) return int64_t{0};
      const int64_t row = t.compute_row_bytes != 0 ? t.compute_row_bytes : t.row_bytes;
      return device_.hosts * divided(t.rows, device_.ranks) * row;
    });
  }
  int64_t made() const {
    return sum_trained([](const Tensor& t) { return t.compute_bytes(); });
  }
  int64_t sent() const {
    return sum_trained([](const Tensor& t) { return t.reduce_bytes(); });
  }
  // One slice, the smallest: its gathered parameters, and its gradient in the dtype of reduction.
  int64_t slice_gathered() const { return slice_gathered(in_slices_->smallest); }
  int64_t slice_sent() const { return slice_sent(in_slices_->smallest); }
  int64_t slice_gathered(int64_t lines) const { return in_slices_->part(weight().compute_bytes(), lines); }
  int64_t slice_sent(int64_t lines) const {
    return weight().trainable ? in_slices_->part(weight().reduce_bytes(), lines) : 0;
  }

  // Until a bucket has copied them, replicated gradients are in the compute dtype, if that is smaller.
  int64_t cast_bytes() const {
    if (!whole()) return 0;
    return sum_trained([](const Tensor& t) { return std::max<int64_t>(0, t.bytes() - t.compute_bytes()); });
  }
  int64_t not_yet_cast() const { return std::min(cast_bytes(), updated()); }

  // While its backward runs: the gradient that it makes, and its own unit or slice.
  int64_t own_phase() const {
    if (whole()) return std::max<int64_t>(0, updated() - cast_bytes());
    if (sliced()) {
      const int64_t made_here =
          op_.places > 1 ? 0 : updated() - updated_on_host();  // a tied weight's: by a later operator
      const int64_t made = made_here + (weight().trainable ? std::max(slice_gathered(), slice_sent()) : 0);
      const bool looks_up = op_.look_ups > 0;  // the backward of a look-up gathers no slice
      return made + (looks_up ? 0 : slice_gathered()) +
             (looks_up || request_.space.streams ? leaving_later() : 0);
    }
    const int64_t made_or_sent = std::max(made(), sent());
    const bool there_anyway = traits(choice_.mode).kept || (recompute_ == Recompute::Hold && held() > 0);
    return made_or_sent + (there_anyway ? 0 : gathered());
  }
  // While a slice's gradient is made, that of the one before it is being reduced, into this rank's part.
  int64_t leaving() const {
    if (slice_sent() == 0) return 0;
    const bool takes_time = CollectiveCosts(device_).reduce(slice_sent(), choice_.mode).seconds() * 1e12 >= 1;
    return takes_time ? std::max(slice_gathered(), slice_sent()) + divided(slice_sent(), device_.ranks) : 0;
  }
  // What has been sent, beside this rank's part; a mean that waits for other hosts may take less than is
  // counted of that.
  int64_t left_after_it() const {
    if (op_.position.left_phases == 0 || whole() || kept_throughout()) return 0;
    if (sliced()) return read_again() ? 0 : leaving();
    return sum_trained([&](const Tensor& t) {
      const int64_t gradient = std::max(t.compute_bytes(), t.reduce_bytes());
      const int64_t kept = divided(t.bytes(), sharing()), mean = divided(t.reduce_bytes(), sharing());
      return reduced_between(traits(choice_.mode)) ? gradient - std::max<int64_t>(0, kept - mean) : gradient;
    });
  }
  int64_t leaving_later() const { return slices() > 1 ? leaving() : 0; }
  // Of gradients of slices, which are added in place to those of earlier micro-batches.
  int64_t summed_in_place() const {
    if (!sliced() || op_.places > 1 || !weight().trainable || offloaded(weight())) return 0;
    return on_rank(weight());
  }
  // With Recompute::Hold, from the recomputation to the backward.
  int64_t held() const {
    return whole() || sliced() || traits(choice_.mode).kept || read_again() ? 0 : gathered();
  }

  // The paper's communication in seconds: NO_SHARD takes two rounds, FULL_SHARD three.
  double paper_s() const {
    const CollectiveCosts link(device_);
    const Mode mode = choice_.mode;
    if (whole()) return link.all_reduce(sent()).seconds();
    if (sliced()) {
      const double of_slices = in_slices_->of_each([&](int64_t lines) {
        return 2 * link.gather(slice_gathered(lines), mode).seconds() +
               link.reduce(slice_sent(lines), mode).seconds();
      });
      int64_t others = slice_sent(in_slices_->replicated);
      for (const Tensor& t : op_.tensors)
        if (t.trainable && !is_weight(t)) others += t.reduce_bytes();
      return of_slices + link.all_reduce(others).seconds() +
             longer_in_slices_s(op_, request_.space, choice_.granularity);
    }
    return link.gather(gathered(), mode).seconds() +
           (traits(mode).kept ? 0 : link.gather_again(gathered(), mode).seconds()) +
           link.reduce(sent(), mode).seconds() + link.average(sent(), mode).seconds();
  }

  const Operator& op_;
  const Request& request_;
  const Device& device_;
  const Recompute recompute_;
  const Choice choice_;
  std::optional<WeightInSlices> in_slices_;
};

// Rows need no packing, and may leave a rest; columns are next, and must leave none.
Split slices_of(const Operator& op, int64_t g) {
  const std::array lines{op.out_features, op.in_features};
  const std::array splits{Split::Out, Split::In};
  const size_t rows = op.transposed ? 1 : 0, columns = 1 - rows;
  if (g < 2) return Split::None;
  if (!op.convolution && lines[rows] % g != 0 && lines[columns] % g == 0) return splits[columns];
  return lines[rows] >= g ? splits[rows] : Split::None;
}

void add_slices(std::vector<Choice>& found, const Operator& op, const Request& request, Mode mode) {
  if (op.split_tensor < 0) return;
  for (const int64_t g : request.space.granularities) {
    const Split split = slices_of(op, g);
    if (split == Split::None) continue;
    if (static_cast<int64_t>(found.size()) + g > kMostCandidates)
      throw InvalidProblem("operator '" + op.name + "' can be treated in too many ways to be checked");
    // Unsharded slices require NO_SHARD, and the others on the device.
    const bool some = allows(request, Mode::NoShard) && mode == Mode::FullShard;
    for (int64_t k = some ? 1 : g; k <= g; ++k) found.push_back({mode, g, k, split});
  }
}

// It has nobody to share with: every mode is NO_SHARD or offload.
std::vector<Choice> choices_of_one_rank(const Operator& op, const Request& request) {
  const auto& modes = request.space.modes;
  std::vector<Choice> found;
  if (!std::all_of(modes.begin(), modes.end(), [](Mode m) { return traits(m).on_host; })) found.push_back({});
  if (!allows(request, Mode::FullShardOffload)) return found;
  found.push_back({Mode::FullShardOffload, 1, 1});
  add_slices(found, op, request, Mode::FullShardOffload);
  return found;
}

std::vector<Choice> choices(const Operator& op, const Request& request) {
  const Device& device = request.device;
  if (op.tensors.empty()) return {};
  if (std::none_of(op.tensors.begin(), op.tensors.end(), has_rows)) return {Choice{}};
  if (device.ranks == 1) return choices_of_one_rank(op, request);
  std::vector<Choice> found;
  if (allows(request, Mode::NoShard)) found.push_back({});
  for (const ModeTraits& m : kModes) {
    if (!m.sharded || m.mode == Mode::FullShard || !allows(request, m.mode)) continue;
    const bool one_level = device.hosts == 1 || device.hosts == device.ranks;
    if ((m.inside_hosts || m.by_hosts) && one_level) continue;
    found.push_back({m.mode, 1, 1});
  }
  if (allows(request, Mode::FullShard)) {
    found.push_back({Mode::FullShard, 1, 1});
    add_slices(found, op, request, Mode::FullShard);
  }
  if (allows(request, Mode::FullShardOffload)) add_slices(found, op, request, Mode::FullShardOffload);
  return found;
}

}  // namespace

int64_t rounded_ps(double seconds, const std::string& name) {
  if (!(seconds >= 0 && seconds < 1e6))  // also NaN
    throw InvalidProblem("operator '" + name + "': a time of " + std::to_string(seconds) + " s");
  return std::llround(seconds * 1e12);
}

std::vector<OptionCost> option_costs(const Operator& op, const Request& request, Recompute recompute) {
  std::vector<OptionCost> costs;
  for (const Choice& choice : choices(op, request))
    costs.push_back(Columns(op, request, recompute, choice).cost());
  return costs;
}

}  // namespace osdp::search
