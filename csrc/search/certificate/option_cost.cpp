#include "search/certificate/option_cost.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "search/problem/validate.hpp"

namespace osdp::search {
namespace {

using Choice = PlainPlan::Choice;

int64_t divided(int64_t n, int64_t by) { return n / by + (n % by != 0); }

bool allows(const Request& request, Mode mode) {
  const auto& modes = request.space.modes;
  return std::find(modes.begin(), modes.end(), mode) != modes.end();
}

bool has_rows(const Tensor& t) { return t.shardable && t.bytes() > 0; }

// One option of one operator. Either the operator is unsplit and all its tensors are replicated or sharded,
// or its weight is split into slices and its other tensors are replicated.
class Columns {
 public:
  Columns(const Operator& op, const Request& request, Recompute recompute, Choice choice)
      : op_(op), request_(request), device_(request.device), recompute_(recompute), choice_(choice) {}

  OptionCost cost() const {
    OptionCost c;
    c.choice = choice_;
    c.state_bytes = sum([&](const Tensor& t) { return copies(t) * on_rank(t) + working_copy(t); });
    c.gradient_bytes = updated();
    c.own_phase_bytes = version() < 3 ? whole_gradient() : own_phase();
    c.kept_bytes = kept();
    c.held_bytes = choice_.mode != Mode::NoShard && !traits(choice_.mode).kept && !sliced() && !read_again()
                       ? gathered()
                       : 0;
    c.transient_bytes = transient();
    c.communication_ps = rounded_ps(communication_s() * (paper() ? 1 : device_.exposed), op_.name);
    if (!paper())
      c.optimizer_ps = rounded_ps(static_cast<double>(updated()) * device_.optimizer_s_per_byte, op_.name);
    return c;
  }

 private:
  bool paper() const { return request_.space.cost == Cost::Paper; }
  int64_t version() const { return request_.space.cost_version; }
  bool sliced() const { return choice_.granularity > 1; }
  bool whole() const { return choice_.mode == Mode::NoShard; }
  bool is_weight(const Tensor& t) const { return sliced() && &t == &op_.tensors[op_.split_tensor]; }
  const Tensor& weight() const { return op_.tensors[op_.split_tensor]; }
  int64_t slices() const { return choice_.sharded_slices; }
  int64_t whole_slices() const { return choice_.granularity - choice_.sharded_slices; }
  // Ranks that share a sharded tensor.
  int64_t sharing() const {
    return traits(choice_.mode).inside_hosts ? device_.ranks / device_.hosts : device_.ranks;
  }
  // Tied parameters and those of a module that is called several times: docs/search.md.
  bool read_again() const { return !paper() && (op_.places > 1 || (op_.calls > 1 && version() > 1)); }

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
  int64_t copies(const Tensor& t) const {
    return t.trainable ? 2 + request_.space.optimizer_bytes_per_parameter_byte : 1;
  }
  // A rank's part of `rows` sharded rows.
  int64_t part(int64_t rows, int64_t row_bytes) const {
    return paper() ? divided(rows * row_bytes, sharing()) : divided(rows, sharing()) * row_bytes;
  }
  // Bytes of the tensor on the rank that holds most.
  int64_t on_rank(const Tensor& t) const {
    if (is_weight(t)) return whole_slices() * (t.bytes() / choice_.granularity) + slices() * slice_part();
    return whole() || sliced() || !t.shardable ? t.bytes() : part(t.rows, t.row_bytes);
  }
  int64_t slice_part() const {
    const int64_t element = weight().bytes() / (op_.out_features * op_.in_features);
    const int64_t out =
        choice_.split == Split::Out ? op_.out_features / choice_.granularity : op_.out_features;
    const int64_t in = choice_.split == Split::In ? op_.in_features / choice_.granularity : op_.in_features;
    return weight().shardable ? part(out, in * element) : out * in * element;
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

  // --- temporary memory

  int64_t gathered() const {
    return sum([](const Tensor& t) { return t.compute_bytes(); });
  }
  int64_t made() const {
    return sum_trained([](const Tensor& t) { return t.compute_bytes(); });
  }
  int64_t sent() const {
    return sum_trained([](const Tensor& t) { return t.reduce_bytes(); });
  }
  // One slice: its gathered parameters, and its gradient in the dtype of reduction.
  int64_t slice_gathered() const { return weight().compute_bytes() / choice_.granularity; }
  int64_t slice_sent() const {
    return weight().trainable ? weight().reduce_bytes() / choice_.granularity : 0;
  }

  // Gradients that backward writes in place.
  int64_t whole_gradient() const {
    return sum_trained([&](const Tensor& t) {
      if (is_weight(t)) return whole_slices() * (t.bytes() / choice_.granularity);
      return whole() || sliced() ? t.bytes() : 0;
    });
  }
  int64_t own_phase() const {
    if (whole()) return updated();
    if (!sliced()) return std::max(made(), sent());
    return updated() + (weight().trainable ? std::max(slice_gathered(), slice_sent()) : 0);
  }
  int64_t kept() const {
    if (sliced()) return 0;
    if (whole()) return read_again() ? (version() < 2 ? 1 : 2) * made() : 0;
    if (read_again()) return gathered() + 2 * made();
    return traits(choice_.mode).kept ? gathered() : 0;
  }
  int64_t transient() const {
    if (paper() || whole()) return 0;
    if (sliced()) return std::max(slice_gathered(), slice_sent());
    return read_again() && version() < 2 ? 0 : std::max(gathered(), sent());
  }

  // --- communication in seconds

  // The ranks of a collective, and the hosts that they are on.
  struct Group {
    int64_t ranks, hosts;
  };
  Group inside_host() const { return {sharing(), 1}; }
  Group across_hosts() const { return {device_.hosts, device_.hosts}; }

  // The time of a collective that sends all bytes once around a ring (an all-gather, a reduce-scatter) or
  // twice (an all-reduce). `latency`: the fraction of its latency that counts.
  double collective_s(Collective link, int64_t bytes, Group group, int rounds, double latency = 1) const {
    if (device_.protocols.empty() || group.ranks == 1) {
      const auto n = static_cast<double>(group.ranks);
      return rounds *
             ((n - 1) * (latency * link.alpha_s + static_cast<double>(bytes) / n * link.beta_s_per_byte));
    }
    // NCCL: the fastest of its protocols. Latency is what it takes more than the one that is the fastest for
    // many bytes would without its own.
    double fastest = std::numeric_limits<double>::infinity(), per_byte = fastest;
    for (const Protocol& p : device_.protocols) {
      if (!runs(p.algorithm, group, rounds)) continue;
      const double of_byte = bytes_sent(p.algorithm, group, rounds) * byte_s(p, link);
      per_byte = std::min(per_byte, of_byte);
      fastest = std::min(fastest, latency_s(p, group, rounds) + static_cast<double>(bytes) * of_byte);
    }
    const double transfer = static_cast<double>(bytes) * per_byte;
    return latency == 1 ? fastest : transfer + latency * (fastest - transfer);
  }
  static bool runs(Algorithm algorithm, Group group, int rounds) {
    if (algorithm == Algorithm::Ring) return true;
    return rounds == 2 && (algorithm == Algorithm::Tree || group.hosts == 1);
  }
  static double byte_s(const Protocol& p, const Collective& link) {
    const double of_links = link.beta_s_per_byte / p.bandwidth_share;
    return p.most_bytes_per_s > 0 ? std::max(of_links, 1 / p.most_bytes_per_s) : of_links;
  }
  // How often each byte passes a rank's link.
  static double bytes_sent(Algorithm algorithm, Group group, int rounds) {
    const auto n = static_cast<double>(group.ranks);
    if (algorithm == Algorithm::Tree) return 2;
    return algorithm == Algorithm::Ring ? (n - 1) / n * rounds : (n - 1) / n;
  }
  static double latency_s(const Protocol& p, Group group, int rounds) {
    if (p.algorithm == Algorithm::InSwitch) return p.base_s;
    int64_t inner = group.ranks - group.hosts, outer = group.hosts - 1;
    if (p.algorithm == Algorithm::Tree) {
      inner = group.ranks / group.hosts - 1, outer = 0;
      for (int64_t hosts = group.hosts; hosts > 1; hosts /= 2) ++outer;
    }
    return p.base_s +
           rounds * (static_cast<double>(inner) * p.inner_hop_s + static_cast<double>(outer) * p.outer_hop_s);
  }
  // Over all ranks, at the speed of the slowest link.
  double over_all_s(Collective link, int64_t bytes, int rounds, double latency = 1) const {
    if (device_.hosts > 1) {
      link.alpha_s = std::max(link.alpha_s, device_.between_hosts.alpha_s);
      link.beta_s_per_byte = std::max(link.beta_s_per_byte, device_.between_hosts.beta_s_per_byte);
    }
    return collective_s(link, bytes, {device_.ranks, device_.hosts}, rounds, latency);
  }
  double all_gather_s(int64_t bytes) const { return over_all_s(device_.all_gather, bytes, 1); }
  double reduce_scatter_s(int64_t bytes) const {
    return bytes > 0 ? over_all_s(device_.reduce_scatter, bytes, 1) : 0;
  }
  double all_reduce_s(int64_t bytes) const {
    if (bytes == 0) return 0;
    const auto bucket = static_cast<double>(request_.space.bucket_bytes);
    const double share = paper() ? 1 : std::min(1.0, static_cast<double>(bytes) / bucket);
    return over_all_s(device_.all_reduce, bytes, 2, share);
  }
  // Number of all-gathers in a micro-batch: in forward, in backward, and in recomputation unless the
  // parameters are held; slices are never held.
  double gathers() const {
    const bool third = recompute_ == Recompute::Regather || (recompute_ == Recompute::Hold && sliced());
    return static_cast<double>((third ? 3 : 2) * (paper() ? 1 : divided(op_.calls, op_.places)));
  }

  double longer_in_slices_s() const {
    const auto own = std::find_if(op_.slices_s.begin(), op_.slices_s.end(), [&](const auto& of_number) {
      return of_number.first == choice_.granularity;
    });
    return own != op_.slices_s.end()
               ? own->second
               : static_cast<double>(choice_.granularity - 1) * request_.space.slice_overhead_s;
  }

  double communication_s() const {
    if (whole()) return all_reduce_s(sent());
    if (sliced()) {
      const double of_slice = gathers() * all_gather_s(slice_gathered()) + reduce_scatter_s(slice_sent());
      int64_t others = whole_slices() * slice_sent();
      for (const Tensor& t : op_.tensors)
        if (t.trainable && !is_weight(t)) others += t.reduce_bytes();
      return static_cast<double>(slices()) * of_slice + all_reduce_s(others) + longer_in_slices_s();
    }
    const double times = traits(choice_.mode).kept ? 1 : gathers();
    if (!traits(choice_.mode).inside_hosts)
      return times * all_gather_s(gathered()) + reduce_scatter_s(sent());
    const double inside = times * collective_s(device_.all_gather, gathered(), inside_host(), 1);
    if (sent() == 0) return inside;
    // Each rank of a host reduces its part across hosts; they share the links, which therefore carry all
    // parts.
    return inside + (collective_s(device_.reduce_scatter, sent(), inside_host(), 1) +
                     collective_s(device_.between_hosts, sent(), across_hosts(), 2));
  }

  const Operator& op_;
  const Request& request_;
  const Device& device_;
  const Recompute recompute_;
  const Choice choice_;
};

std::vector<Choice> choices(const Operator& op, const Request& request) {
  const Device& device = request.device;
  if (op.tensors.empty()) return {};
  if (device.ranks == 1 || std::none_of(op.tensors.begin(), op.tensors.end(), has_rows)) return {Choice{}};
  std::vector<Choice> found;
  if (allows(request, Mode::NoShard)) found.push_back({});
  for (const ModeTraits& m : kModes) {
    if (!m.sharded || m.mode == Mode::FullShard || !allows(request, m.mode)) continue;
    if (m.inside_hosts && (device.hosts == 1 || device.hosts == device.ranks)) continue;
    found.push_back({m.mode, 1, 1});
  }
  if (!allows(request, Mode::FullShard)) return found;
  found.push_back({Mode::FullShard, 1, 1});
  if (op.split_tensor < 0) return found;
  for (const int64_t g : request.space.granularities) {
    const Split split = op.out_features % g == 0  ? Split::Out
                        : op.in_features % g == 0 ? Split::In
                                                  : Split::None;
    if (g < 2 || split == Split::None) continue;
    if (static_cast<int64_t>(found.size()) + g > kMostCandidates)
      throw InvalidProblem("operator '" + op.name + "' can be treated in too many ways to be checked");
    // Unsharded slices require NO_SHARD.
    for (int64_t k = allows(request, Mode::NoShard) ? 1 : g; k <= g; ++k)
      found.push_back({Mode::FullShard, g, k, split});
  }
  return found;
}

// Memory for averaging one operator's replicated gradients: Note [Averaging] in problem/cost.cpp.
struct Averaged {
  int128 trained = 0, small = 0;   // bytes as stored, and of tensors packed together
  int128 copied = 0, largest = 0;  // under mixed precision: copies; the largest gradient in the compute dtype
};

Averaged averaged(const Operator& op, const Request& request, bool accumulates) {
  Averaged a;
  const bool may_be_whole =
      allows(request, Mode::NoShard) ||
      std::none_of(op.tensors.begin(), op.tensors.end(), [](const Tensor& t) { return has_rows(t); });
  bool mixed = false;
  int128 copied = 0, largest = 0;
  for (size_t i = 0; i < op.tensors.size(); ++i) {
    const Tensor& t = op.tensors[i];
    if (!t.trainable) continue;
    a.trained += t.bytes();
    if (t.bytes() <= kSmallTensorBytes) a.small += t.bytes();
    const bool in_slices = static_cast<int>(i) == op.split_tensor && !request.space.granularities.empty();
    copied += t.reduce_bytes();
    if (accumulates) copied += in_slices ? t.bytes() : t.compute_bytes();
    largest = std::max<int128>(largest, t.compute_bytes());
    mixed |= t.compute_bytes() != t.bytes() || t.reduce_bytes() != t.bytes();
  }
  if (mixed && may_be_whole) a.copied = copied, a.largest = largest;
  return a;
}

// A rank's part of the operator's gradient in the mode in which the fewest ranks share it.
int128 gradient_part(const Operator& op, const Request& request) {
  int64_t fewest = 0;
  for (const Mode mode : request.space.modes) {
    const Device& d = request.device;
    const int64_t sharing = traits(mode).inside_hosts ? d.ranks / d.hosts : d.ranks;
    if (traits(mode).sharded && (fewest == 0 || sharing < fewest)) fewest = sharing;
  }
  int128 part = 0;
  for (const Tensor& t : op.tensors)
    if (fewest > 0 && t.trainable && t.shardable)
      part += static_cast<int128>(divided(t.rows, fewest)) * t.row_bytes;
  return part;
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

int128 averaging_cost_bytes(const Model& model, const Request& request, bool accumulates) {
  if (request.space.cost == Cost::Paper || request.device.ranks == 1) return 0;
  const int64_t version = request.space.cost_version;
  std::vector<Averaged> all;
  int128 trained = 0, small = 0, smalls_of_one = 0, part = 0, completing = 0;
  for (const Operator& op : model.operators) {
    const Averaged& a = all.emplace_back(averaged(op, request, accumulates));
    trained += a.trained, small += a.small;
    smalls_of_one = std::max(smalls_of_one, a.small);
    completing = std::max(completing, a.largest);
    part = std::max(part, gradient_part(op, request));
  }
  const int128 bucket = std::min<int128>(trained, request.space.bucket_bytes);
  if (version == 1) return bucket;
  int128 most = version == 2 ? bucket : std::max(smalls_of_one, std::min(bucket, small));
  for (const Averaged& a : all) {
    // A bucket full of operators like this one, or this one alone.
    most = std::max(most, a.copied);
    if (a.trained > 0) most = std::max(most, (bucket * a.copied + a.trained - 1) / a.trained);
  }
  if (accumulates && version > 4) most += part;
  if (!accumulates && version > 5) most += completing;
  return most;
}

}  // namespace osdp::search
