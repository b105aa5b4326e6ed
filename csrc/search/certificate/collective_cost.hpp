// The time of collectives, for the checkers: it shares no code with problem/collective_time.hpp, whose Note
// [Protocols of NCCL] states the formulas.
#pragma once

#include <algorithm>
#include <limits>

#include "search/problem/model.hpp"
#include "search/problem/request.hpp"

namespace osdp::search {

// One collective: while its link is busy, and the rest.
struct CollectiveCost {
  double busy_s = 0, waiting_s = 0;
  double between_s = 0;                       // part of busy_s on the link between hosts
  double slower_s = 0, slower_waiting_s = 0;  // more of both while this rank computes
  double seconds() const { return busy_s + waiting_s; }
  CollectiveCost with_waiting(double times) const {
    return {busy_s, waiting_s * times, between_s, slower_s, slower_waiting_s * times};
  }
};

class CollectiveCosts {
 public:
  explicit CollectiveCosts(const Device& device) : device_(device) {}

  CollectiveCost gather(int64_t bytes, Mode mode) const { return in_levels(device_.all_gather, bytes, mode); }
  // After the first one of a forward, until the backward is over: from what other hosts have sent before.
  CollectiveCost gather_again(int64_t bytes, Mode mode) const {
    if (!traits(mode).second) return gather(bytes, mode);
    return over(device_.all_gather, bytes, {device_.ranks / device_.hosts, 1}, 1);
  }
  CollectiveCost reduce(int64_t bytes, Mode mode) const {
    const Collective& link = device_.reduce_scatter;
    return traits(mode).by_hosts ? over(link, bytes, {device_.ranks / device_.hosts, 1}, 1)
                                 : of(link, bytes, mode, 1);
  }
  CollectiveCost all_reduce(int64_t bytes) const { return of(device_.all_reduce, bytes, Mode::NoShard, 2); }
  // Each rank of a host reduces its part across hosts, over links that they share.
  // An all-reduce, or a reduce-scatter if no two hosts keep the same.
  CollectiveCost average(int64_t bytes, Mode mode) const {
    const int rounds = traits(mode).inside_hosts ? 2 : traits(mode).by_hosts ? 1 : 0;
    return rounds == 0 ? CollectiveCost{}
                       : over(device_.between_hosts, bytes, {device_.hosts, device_.hosts}, rounds);
  }
  // So many gathers of so many bytes together, at most: each waits as long as the largest does.
  CollectiveCost gathers(int64_t bytes, int64_t times, Mode mode, bool again) const {
    const CollectiveCost together = again ? gather_again(bytes, mode) : gather(bytes, mode);
    const CollectiveCost least = again ? gather_again(1, mode) : gather(1, mode);
    const auto n = static_cast<double>(times);
    return {together.busy_s, n * longest_wait_s(mode, again), together.between_s, together.slower_s,
            n * least.slower_waiting_s};
  }

 private:
  struct Group {
    int64_t ranks, hosts;
  };

  // All ranks together, those of a host, or first the ranks in the same place of all hosts and then those of
  // a host.
  CollectiveCost in_levels(const Collective& link, int64_t bytes, Mode mode) const {
    if (!traits(mode).by_hosts) return of(link, bytes, mode, 1);
    const CollectiveCost between = over(device_.between_hosts, bytes, {device_.hosts, device_.hosts}, 1),
                         inside = over(link, bytes, {device_.ranks / device_.hosts, 1}, 1);
    return {between.busy_s + inside.busy_s, between.waiting_s + inside.waiting_s, between.between_s,
            between.slower_s + inside.slower_s, between.slower_waiting_s + inside.slower_waiting_s};
  }
  CollectiveCost of(Collective link, int64_t bytes, Mode mode, int rounds) const {
    if (traits(mode).inside_hosts) return over(link, bytes, {device_.ranks / device_.hosts, 1}, rounds);
    if (device_.hosts > 1) {  // over all ranks, at the speed of the slowest link
      link.alpha_s = std::max(link.alpha_s, device_.between_hosts.alpha_s);
      link.beta_s_per_byte = std::max(link.beta_s_per_byte, device_.between_hosts.beta_s_per_byte);
    }
    return over(link, bytes, {device_.ranks, device_.hosts}, rounds);
  }
  // Of a gather: the latency of the protocol that is the fastest for many bytes.
  double longest_wait_s(Mode mode, bool again) const {
    const Group line{device_.ranks / device_.hosts, 1};
    if (traits(mode).inside_hosts || (again && traits(mode).second))
      return longest_wait_s(line, device_.all_gather);
    if (traits(mode).by_hosts)
      return longest_wait_s({device_.hosts, device_.hosts}, device_.between_hosts) +
             longest_wait_s(line, device_.all_gather);
    Collective link = device_.all_gather;
    if (device_.hosts > 1) {
      link.alpha_s = std::max(link.alpha_s, device_.between_hosts.alpha_s);
      link.beta_s_per_byte = std::max(link.beta_s_per_byte, device_.between_hosts.beta_s_per_byte);
    }
    return longest_wait_s({device_.ranks, device_.hosts}, link);
  }
  double longest_wait_s(Group group, const Collective& link) const {
    if (device_.protocols.empty() || group.ranks == 1) return over(link, 1, group, 1).waiting_s;
    double wait = 0, per_byte = std::numeric_limits<double>::infinity();
    for (const Protocol& p : device_.protocols) {
      if (!runs(p.algorithm, group, 1)) continue;
      const double of_byte = bytes_sent(p.algorithm, group, 1) * byte_s(p, link),
                   own = latency_s(p, group, 1);
      if (of_byte < per_byte || (of_byte == per_byte && own < wait)) per_byte = of_byte, wait = own;
    }
    return wait;
  }
  // Sends all bytes once around a ring (an all-gather, a reduce-scatter) or twice (an all-reduce).
  CollectiveCost over(const Collective& link, int64_t bytes, Group group, int rounds) const {
    if (bytes == 0) return {};
    const auto n = static_cast<double>(group.ranks);
    const double hops = rounds * (n - 1), a_hop = static_cast<double>(bytes) / n;
    CollectiveCost cost;
    const auto on_link = [&](double busy_s) { return group.hosts > 1 ? busy_s : 0; };
    cost.slower_s = hops * a_hop * device_.delay.beta_s_per_byte;
    cost.slower_waiting_s = hops * device_.delay.alpha_s;
    if (device_.protocols.empty() || group.ranks == 1) {
      cost.busy_s = hops * (a_hop * link.beta_s_per_byte), cost.waiting_s = hops * link.alpha_s;
      cost.between_s = on_link(cost.busy_s);
      return cost;
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
    cost.busy_s = static_cast<double>(bytes) * per_byte;
    cost.between_s = on_link(cost.busy_s);
    cost.waiting_s = std::max(0.0, fastest - cost.busy_s);
    return cost;
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

  const Device& device_;
};

// The seconds that a micro-batch takes longer in so many slices.
inline double longer_in_slices_s(const Operator& op, const Space& space, int64_t granularity) {
  const auto own = std::find_if(op.slices_s.begin(), op.slices_s.end(),
                                [&](const auto& of_number) { return of_number.first == granularity; });
  return own != op.slices_s.end() ? own->second
                                  : static_cast<double>(granularity - 1) * space.slice_overhead_s;
}

}  // namespace osdp::search
