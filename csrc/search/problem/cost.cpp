#include "search/problem/cost.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "search/problem/collective_time.hpp"
#include "search/problem/problem.hpp"
#include "search/problem/slices.hpp"
#include "search/problem/step_bound.hpp"
#include "search/problem/validate.hpp"

namespace osdp::search {
namespace {

constexpr int64_t kMostAhead = 16;       // units gathered ahead: simulate/runtime_rules.hpp
constexpr double kLeastSeconds = 1e-12;  // of a simulated collective

int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

int64_t optimizer_bytes(const OptimizerState& kept, const Tensor& t, int64_t bytes) {
  const int64_t elements = ceil_div(bytes, t.item_bytes), blocks = elements / 256, rest = elements % 256;
  if (elements < kept.small) return elements * kept.small_item;
  return kept.copies * bytes + blocks * kept.per_256 + ceil_div(rest * kept.per_256, 256);
}

// Costs of one operator; times are in seconds until finish() converts them.
class Pricer {
 public:
  // `in_phases`: memory is what a phase of the search holds, else what the runtime keeps.
  Pricer(const Operator& op, const Device& device, const Space& space, Recompute recompute, bool in_phases)
      : op_(op),
        device_(device),
        collectives_(device),
        space_(space),
        recompute_(recompute),
        in_phases_(in_phases) {
    if (space.shares && !paper()) bound_ps_ = option_bound_ps(op, device, space, recompute);
    for (const Tensor& t : op.tensors) {
      compute_bytes_ += t.compute_bytes();
      if (!t.trainable) continue;
      trainable_bytes_ += t.bytes(), reduce_bytes_ += t.reduce_bytes();
      compute_gradient_bytes_ += t.compute_bytes();
      full_gradient_bytes_ += std::max(t.compute_bytes(), t.reduce_bytes());
    }
  }

  Candidate no_shard() const {
    Candidate c;
    for (const Tensor& t : op_.tensors) c.state_bytes += state(t, t.bytes()) + t.copy_bytes();
    c.gradient_bytes = c.whole_gradient_bytes = c.own_bytes = trainable_bytes_;
    // The sum that autograd keeps and, while another call's gradient is added to it, the new sum.
    if (again() && sum_is_peak()) c.gathered_bytes = 2 * compute_gradient_bytes_;
    return finish(c, all_reduce(reduce_bytes_) * space_.stage.part(), trainable_bytes_);
  }

  // Parameters, gradients and optimizer state are sharded, and gathered once or for every use, as the mode's
  // traits say. Inside hosts: gradients are reduced inside, then each rank's part across hosts.
  Candidate sharded(Mode mode) const {
    Candidate c;
    c.mode = mode;
    c.sharded_slices = 1;
    const bool kept = traits(mode).kept;
    const int64_t inside = traits(mode).inside_hosts ? device_.ranks / device_.hosts : device_.ranks;
    const int64_t updated = add_sharded(c, inside);
    const Offloaded away = traits(mode).on_host ? offload(c, inside) : Offloaded{};
    // Tied parameters, and those of a module that is called several times, stay gathered by themselves.
    if (kept || !again()) (kept ? c.gathered_bytes : c.held_bytes) = compute_bytes_;
    if (traits(mode).second) c.gathered_bytes += second_bytes();
    const double further = kept ? 0 : gathers() - 1;
    double seconds = collectives_.gather(mode).seconds(compute_bytes_) +
                     further * collectives_.gather_again(mode).seconds(compute_bytes_) +
                     (1 + further) * copy_s(away.rows);
    if (reduce_bytes_ > 0) {
      double reduction = collectives_.reduce(mode).seconds(reduce_bytes_);
      if (reduced_between(traits(mode))) reduction += collectives_.average(mode).seconds(reduce_bytes_);
      seconds += reduction + copy_s(away.updated);
    }
    if (!kept_throughout(mode)) return finish(c, seconds, updated - away.updated, away.updated);
    const int64_t sum = full_gradient_bytes_;  // beside the part, which is there from the first backward on
    if (between_first_and_last()) {
      c.gathered_bytes -= compute_bytes_;
      c.state_bytes += compute_bytes_ + sum;
      c.gradient_bytes += sum;
    } else {
      c.gathered_bytes += sum;
    }
    return finish(c, seconds * space_.stage.part(), updated);
  }

  // `sharded` of `granularity` slices of the weight are sharded, each a unit of its own, in host memory if
  // the mode says so; the other slices and the operator's other parameters (the bias) are replicated.
  Candidate sliced(Mode mode, int64_t granularity, int64_t sharded, Split split) const {
    const Tensor& weight = op_.tensors[op_.split_tensor];
    Candidate c;
    c.mode = mode;
    c.granularity = granularity, c.sharded_slices = sharded, c.split = split;
    const Slices slices(op_, granularity, sharded, split);
    const auto gathered = [&](int64_t part) { return slices.bytes(weight.compute_bytes(), part); };
    const auto sent = [&](int64_t part) {
      return weight.trainable ? slices.bytes(weight.reduce_bytes(), part) : 0;
    };
    const int64_t item_bytes = weight.bytes() / (op_.out_features * op_.in_features);
    const auto of_slice = [&](int64_t part) {
      Tensor slice = weight;  // sharded by rows
      slice.rows = slices.rows_of(part);
      slice.row_bytes = slices.columns_of(part) * item_bytes;
      return held(slice, device_.ranks);
    };
    const int64_t of_rank = slices.sum(of_slice);
    const bool on_host = traits(mode).on_host;
    const int64_t away = on_host && weight.trainable ? of_rank : 0;  // updated on the host
    const int64_t whole = slices.bytes(weight.bytes(), slices.whole);
    int64_t updated = of_rank + whole, kept_whole = whole;
    int64_t reduced = sent(slices.whole);
    if (!weight.trainable) updated = kept_whole = 0;
    if (op_.places <= 1) c.summed_bytes = updated - away;
    (on_host ? c.host_bytes : c.state_bytes) = state(weight, of_rank + whole);
    for (const Tensor& t : op_.tensors) {
      if (&t == &weight) continue;
      c.state_bytes += state(t, t.bytes()) + t.copy_bytes();
      if (t.trainable) updated += t.bytes(), kept_whole += t.bytes(), reduced += t.reduce_bytes();
    }
    c.gradient_bytes = updated - away, c.whole_gradient_bytes = kept_whole;
    c.transient_bytes = std::max(gathered(slices.large), sent(slices.large));
    // Backward of the first slice allocates the gradients that this rank keeps of all slices: of a tied
    // weight in the phase of the last operator that reads it.
    const int64_t made = in_phases_ ? slices.small : slices.large;  // phases hold what is certain
    c.own_bytes =
        (op_.places > 1 ? 0 : updated - away) + (weight.trainable ? std::max(gathered(made), sent(made)) : 0);
    const double seconds = slices.sum([&](int64_t part) {
      const double copy = on_host ? copy_s(of_slice(part)) : 0, copies = 2 * slice_reductions() - 1;
      const double reduction =
          sent(part) > 0
              ? slice_reductions() * collectives_.reduce(c.mode).seconds(sent(part)) + copies * copy
              : 0;
      return slice_gathers() * (collectives_.gather(c.mode).seconds(gathered(part)) + copy) + reduction;
    }) + all_reduce(reduced) * space_.stage.part() +
                           slices_s(op_, space_, granularity);
    return finish(c, seconds, updated - away, away);
  }

 private:
  bool again() const { return (op_.places > 1 || op_.calls > 1) && !paper(); }
  // Where nothing is transferred nothing depends on timing: the largest phase is the peak.
  bool sum_is_peak() const { return moves_nothing(device_, space_) && !space_.shares; }
  bool paper() const { return space_.cost == Cost::Paper; }
  // Note [Stages of a pipeline]. The sum of gradients is in memory before and after this operator's backward
  // in a micro-batch that is neither the first nor the last; of two, before that of the last one.
  bool between_first_and_last() const { return space_.stage.micro_batches > 2; }
  bool kept_throughout(Mode mode) const {
    return traits(mode).kept && space_.stage.micro_batches > 1 && device_.ranks > 1;
  }
  // Parameter, gradient and optimizer state of `bytes` of a tensor.
  int64_t state(const Tensor& t, int64_t bytes) const {
    return t.trainable ? 2 * bytes + optimizer_bytes(space_.optimizer, t, bytes) : bytes;
  }
  // The bytes of a sharded tensor on the rank that holds most of it, of `ranks` ranks.
  int64_t held(const Tensor& t, int64_t ranks) const {
    if (!t.shardable) return t.bytes();
    return paper() ? ceil_div(t.bytes(), ranks) : t.part_bytes(ranks);
  }
  // Number of gathers of the parameters in one micro-batch.
  double gathers() const {
    const double calls = paper() ? 1 : static_cast<double>(ceil_div(op_.calls, op_.places));
    return (recompute_ == Recompute::Regather ? 3 : 2) * calls;
  }
  // The same of a slice. Slices are gathered one by one and never held, so that every call gathers them, and
  // recomputation again even with Hold; look-ups gather none in backward.
  double slice_gathers() const {
    const int64_t again = recompute_ == Recompute::None ? 0 : 1;
    if (paper()) return static_cast<double>(2 + again);
    return static_cast<double>(ceil_div(op_.calls, op_.places) * (2 * op_.places - op_.look_ups + again));
  }
  double slice_reductions() const { return paper() ? 1 : static_cast<double>(op_.places); }
  double all_reduce(int64_t bytes) const {
    if (bytes == 0) return 0;
    // Small gradients share a bucket and its latency.
    const double share =
        paper() ? 1 : std::min(1.0, static_cast<double>(bytes) / static_cast<double>(space_.bucket_bytes));
    return collectives_.all_reduce().seconds(bytes, share);
  }

  // Adds the state of a fully sharded operator; returns the bytes of parameters that this rank updates.
  int64_t add_sharded(Candidate& c, int64_t ranks) const {
    int64_t updated = 0;
    for (const Tensor& t : op_.tensors) {
      c.state_bytes += state(t, held(t, ranks));
      if (t.trainable) updated += held(t, ranks);
    }
    c.gradient_bytes = updated;
    // The gathered parameters, or the gradient that is reduced.
    c.transient_bytes = std::max(compute_bytes_, reduce_bytes_);
    c.own_bytes = std::max(compute_gradient_bytes_, reduce_bytes_);
    return updated;
  }

  // What the ranks in the same place of all hosts have gathered.
  int64_t second_bytes() const {
    int64_t bytes = 0;
    for (const Tensor& t : op_.tensors)
      bytes += t.rows_of_places(device_.ranks, device_.hosts) * t.compute_row();
    return bytes;
  }

  // What rests in host memory, of a rank's bytes: rows, and those of them that are trained.
  struct Offloaded {
    int64_t rows = 0, updated = 0;
  };
  // Moves the state of what is sharded to the host.
  Offloaded offload(Candidate& c, int64_t ranks) const {
    Offloaded away;
    for (const Tensor& t : op_.tensors) {
      if (!t.shardable) continue;
      const int64_t bytes = held(t, ranks);
      away.rows += bytes, c.host_bytes += state(t, bytes);
      if (t.trainable) away.updated += bytes;
    }
    c.state_bytes -= c.host_bytes, c.gradient_bytes -= away.updated;
    return away;
  }
  double copy_s(int64_t bytes) const {
    const Collective& copy = device_.host.copy;
    return bytes == 0 ? 0 : copy.alpha_s + static_cast<double>(bytes) * copy.beta_s_per_byte;
  }

  // `updated_bytes`: on the device, and on the host.
  Candidate finish(Candidate c, double communication_s, int64_t updated_bytes,
                   int64_t updated_on_host = 0) const {
    c.communication_ps =
        picoseconds(paper() ? communication_s : communication_s * device_.exposed, "operator", op_.name);
    if (paper()) {
      c.transient_bytes = 0;
    } else {
      c.optimizer_ps =
          picoseconds(static_cast<double>(updated_bytes) * device_.optimizer_s_per_byte +
                          static_cast<double>(updated_on_host) * device_.host.optimizer_s_per_byte,
                      "operator", op_.name);
    }
    if (bound_ps_) c.communication_ps = bound_ps_(c);
    return !in_phases_ || paper() || sum_is_peak() ? c : certain(c);
  }

  // Only what is in memory whatever the timing: no gradient that autograd sums over several calls, and the
  // operator's own unit, which is gathered while its backward runs, or as many of its slices as fit into the
  // smallest budget for gathering. The last one may be gathered before the gradient of a slice is made. From
  // the second slice on, when one fewer is left, the gradient of the one before it is still being reduced
  // then, but where its gather waits for that.
  Candidate certain(Candidate c) const {
    const bool sharded = traits(c.mode).sharded, split = c.granularity > 1, kept = traits(c.mode).kept;
    if (!sharded) {  // a replicated gradient is in the compute dtype until its bucket has copied it
      int64_t cast = 0;
      for (const Tensor& t : op_.tensors)
        if (t.trainable) cast += std::max<int64_t>(0, t.bytes() - t.compute_bytes());
      c.own_bytes = std::max<int64_t>(0, c.own_bytes - cast);
      cast = std::min(cast, c.gradient_bytes);
      c.state_bytes -= cast, c.gradient_bytes -= cast;
    }
    if (split) {
      const Slices slices(op_, c.granularity, c.sharded_slices, c.split);
      const int64_t bytes = op_.tensors[op_.split_tensor].compute_bytes();
      const int64_t slice = slices.bytes(bytes, slices.small), large = slices.bytes(bytes, slices.large);
      const int64_t fitting = large == 0 ? 1 : std::max<int64_t>(1, space_.gather.least / large);
      const bool looks_up = op_.look_ups > 0;  // in its own backward, which is the last
      const auto ahead = [&](int64_t left) {
        return looks_up ? 0 : slice * std::min({std::max<int64_t>(1, left), fitting, 1 + kMostAhead});
      };
      const bool second = c.sharded_slices > 1 && (looks_up || fitting > 1 || space_.streams);
      const int64_t leaving = second ? leaving_bytes(c) : 0, first = ahead(c.sharded_slices - 1);
      const int64_t more = std::max(first, ahead(c.sharded_slices - 2) + leaving) - first;
      c.own_bytes += first + more;
      if (op_.position.sees_left) c.late_bytes = more;
      const LessInSlices less = less_in_slices(op_);
      c.own_bytes -= less.own + fewer_copies(op_, slices), c.gathered_bytes -= less.after;
      c.own_bytes += sum_of_slices(c.split);
    } else if (sharded && !split && !kept && (recompute_ != Recompute::Hold || c.held_bytes == 0)) {
      c.own_bytes += compute_bytes_;
    }
    c.left_phases = op_.position.left_phases;
    if (c.left_phases > 0 && sharded && !kept_throughout(c.mode))
      c.left_bytes = !split ? left_bytes(c.mode) : op_.places > 1 || op_.calls > 1 ? 0 : leaving_bytes(c);
    return c;
  }

  // Note [Sums of slices] in cost.hpp.
  int64_t sum_of_slices(Split split) const {
    if (!space_.divided || !sums_in_float(op_) || split != Split::Out) return 0;
    if (op_.places > 1 || op_.calls > 1 || op_.look_ups > 0 || op_.convolution) return 0;
    const int128 bytes = static_cast<int128>(op_.rows_per_sample) * op_.in_features * int64_t{sizeof(float)} *
                         space_.of_sizes.least;
    return static_cast<int64_t>(std::min<int128>(bytes, kLargestSum / 8));  // at most: totals stay below 2^61
  }

  // Its gradient until computation waits for the next reduction. Where the mean is cast, its bytes may be
  // fewer than are counted of this rank's part.
  int64_t left_bytes(Mode mode) const {
    int64_t bytes = full_gradient_bytes_;
    if (!reduced_between(traits(mode))) return bytes;
    const int64_t ranks = traits(mode).inside_hosts ? device_.ranks / device_.hosts : device_.ranks;
    for (const Tensor& t : op_.tensors)
      if (t.trainable)
        bytes -= std::max<int64_t>(0, ceil_div(t.bytes(), ranks) - ceil_div(t.reduce_bytes(), ranks));
    return std::max<int64_t>(0, bytes);
  }

  // A slice's gradient and the part of its mean that this rank keeps, while it is reduced.
  int64_t leaving_bytes(const Candidate& c) const {
    const Tensor& weight = op_.tensors[op_.split_tensor];
    const Slices slices(op_, c.granularity, c.sharded_slices, c.split);
    const int64_t sent = weight.trainable ? slices.bytes(weight.reduce_bytes(), slices.small) : 0;
    if (sent == 0) return 0;
    if (collectives_.reduce(c.mode).seconds(sent) < kLeastSeconds) return 0;
    return std::max(sent, slices.bytes(weight.compute_bytes(), slices.small)) + ceil_div(sent, device_.ranks);
  }

  const Operator& op_;
  const Device& device_;
  const Collectives collectives_;
  const Space& space_;
  const Recompute recompute_;
  const bool in_phases_;
  std::function<int64_t(const Candidate&)> bound_ps_;  // of options: null without shares
  // Bytes of all parameters in the dtype of gathering, of trainable ones as stored, and of their gradients in
  // the dtype of averaging.
  int64_t compute_bytes_ = 0, trainable_bytes_ = 0, reduce_bytes_ = 0;
  int64_t compute_gradient_bytes_ = 0;  // of gradients, in the dtype in which backward produces them
  int64_t full_gradient_bytes_ = 0;     // in that or the one of averaging, whichever is wider
};

}  // namespace

int64_t picoseconds(double seconds, const char* whose, const std::string& name) {
  if (!(seconds >= 0 && seconds < 1e6)) {  // also NaN
    throw InvalidProblem(whose + (name.empty() ? "" : " '" + name + "'") + ": a time of " +
                         std::to_string(seconds) + " s; it must be between 0 and 1e6 s");
  }
  return std::llround(seconds * 1e12);
}

double slices_s(const Operator& op, const Space& space, int64_t granularity) {
  for (const auto& [slices, seconds] : op.slices_s)
    if (slices == granularity) return seconds;
  return static_cast<double>(granularity - 1) * space.slice_overhead_s;
}

int64_t Linear::operator()(int64_t b) const {
  const auto v = static_cast<__int128>(b) * per_sample + fixed;
  if (v < -kLargestSum || v > kLargestSum) throw InvalidProblem("a total of one step overflows 2^61");
  return static_cast<int64_t>(v);
}

Linear recompute_ps(const Operator& op, const Device& device) {
  const auto ps = [&](double seconds) {
    return picoseconds(seconds * device.recompute_slowdown, "operator", op.name);
  };
  return {ps(op.recompute_s_fixed), ps(op.recompute_s_per_sample)};
}

namespace {

bool has_rows(const Operator& op) {
  return std::any_of(op.tensors.begin(), op.tensors.end(),
                     [](const Tensor& t) { return t.shardable && t.bytes() > 0; });
}

// Whether ranks hold parts of what has rows. One rank has no others to share with, but what it offloads
// comes and goes as shards do.
bool shards(Mode mode, const Device& device) {
  return traits(mode).sharded && (device.ranks > 1 || traits(mode).on_host);
}

// On one host, what is sharded inside hosts is sharded over all ranks. There, and with one rank on each host,
// two levels are one.
bool one_level(const Device& device) { return device.hosts == 1 || device.hosts == device.ranks; }
Mode over_all_ranks(Mode mode, const Device& device) {
  if (traits(mode).by_hosts && one_level(device)) return Mode::FullShard;
  if (!traits(mode).inside_hosts || device.hosts > 1) return mode;
  for (const ModeTraits& m : kModes)
    if (m.sharded && !m.inside_hosts && !m.by_hosts && m.kept == traits(mode).kept &&
        m.on_host == traits(mode).on_host)
      return m.mode;
  return mode;
}

}  // namespace

Candidate candidate_of(const Operator& op, const Device& device, const Space& space, Recompute recompute,
                       Mode mode, int64_t granularity, int64_t sharded, Split split) {
  const Pricer price(op, device, space, recompute, false);
  if (!shards(mode, device) || !has_rows(op)) return price.no_shard();
  mode = over_all_ranks(mode, device);
  if (granularity == 1 || !traits(mode).sliced) return price.sharded(mode);
  const int64_t length = split == Split::Out ? op.out_features : split == Split::In ? op.in_features : 0;
  const bool by_rows = (split == Split::Out) != op.transposed;
  if (op.split_tensor < 0 || length == 0 || !slices_fit(length, granularity, by_rows) ||
      sharded > granularity || (op.convolution && !by_rows) ||
      (traits(mode).on_host && sharded < granularity)) {
    throw InvalidProblem("operator '" + op.name + "' cannot be computed in " + std::to_string(granularity) +
                         " slices as the plan says");
  }
  return price.sliced(mode, granularity, sharded, split);
}

namespace {

std::vector<Candidate> every_candidate(const Operator& op, const Device& device, const Space& space,
                                       Recompute recompute) {
  validate(op);
  if (op.tensors.empty()) return {};
  const Pricer price(op, device, space, recompute, true);
  std::vector<Candidate> found;
  const auto allowed = [&](Mode m) {
    if (space.cost == Cost::Paper && traits(m).on_host) return false;  // it knows no host memory
    return std::find(space.modes.begin(), space.modes.end(), m) != space.modes.end();
  };
  const bool whole = std::any_of(kModes.begin(), kModes.end(), [&](const ModeTraits& m) {
    return allowed(m.mode) && !shards(m.mode, device);
  });
  if (whole || !has_rows(op)) found.push_back(price.no_shard());
  if (!has_rows(op)) return found;
  for (const ModeTraits& m : kModes)
    if (shards(m.mode, device) && m.mode != Mode::FullShard && allowed(m.mode) &&
        !((m.inside_hosts || m.by_hosts) && one_level(device)))
      found.push_back(price.sharded(m.mode));
  if (allowed(Mode::FullShard) && shards(Mode::FullShard, device))
    found.push_back(price.sharded(Mode::FullShard));
  if (op.split_tensor < 0) return found;
  for (const Mode mode : {Mode::FullShard, Mode::FullShardOffload}) {
    if (!allowed(mode) || !shards(mode, device)) continue;
    for (int64_t g : space.granularities) {
      const Split split = split_of(op, g);
      if (split == Split::None) continue;
      if (static_cast<int64_t>(found.size()) + g > kMostCandidates) {
        throw InvalidProblem("operator '" + op.name + "': more than " + std::to_string(kMostCandidates) +
                             " ways to shard it; try fewer granularities");
      }
      const bool some = allowed(Mode::NoShard) && !traits(mode).on_host;  // of its slices may be replicated
      for (int64_t k = some ? 1 : g; k <= g; ++k) found.push_back(price.sliced(mode, g, k, split));
    }
  }
  return found;
}

}  // namespace

std::vector<Candidate> candidates(const Operator& op, const Device& device, const Space& space,
                                  Recompute recompute) {
  std::vector<Candidate> found = every_candidate(op, device, space, recompute);
  int64_t most = kLargestSum;
  for (const Candidate& c : found) most = std::min(most, c.transient_bytes);
  most = std::max(most, space.most_transient_bytes);
  std::erase_if(found, [most](const Candidate& c) { return c.transient_bytes > most; });
  return found;
}

}  // namespace osdp::search
