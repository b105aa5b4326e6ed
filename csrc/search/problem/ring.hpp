// The time of collectives, the one formula of objective, simulator and bound. (The checkers in certificate/
// have their own.)
#pragma once

#include <algorithm>

#include "search/problem/request.hpp"

namespace osdp::search {

// Passes over a ring: one for an all-gather or a reduce-scatter, two for an all-reduce.
struct Ring {
  Collective hop;
  int64_t ranks = 1, passes = 1;
  bool between_hosts = false;  // it uses the link between hosts

  // `latency`: the fraction of alpha that counts.
  double seconds(int64_t bytes, double latency = 1) const {
    const auto n = static_cast<double>(ranks);
    return static_cast<double>(passes) *
           ((n - 1) * (latency * hop.alpha_s + static_cast<double>(bytes) / n * hop.beta_s_per_byte));
  }
  // Of the latencies alone.
  double latency_s() const { return seconds(0); }
  // Each hop takes `more`.
  Ring delayed(const Collective& more) const {
    Ring ring = *this;
    ring.hop.alpha_s += more.alpha_s, ring.hop.beta_s_per_byte += more.beta_s_per_byte;
    return ring;
  }
};

class Rings {
 public:
  explicit Rings(const Device& device) : device_(device) {}

  Ring gather(Mode mode) const { return of(mode, device_.all_gather, 1); }
  Ring reduce(Mode mode) const { return of(mode, device_.reduce_scatter, 1); }
  Ring all_reduce() const { return of(Mode::NoShard, device_.all_reduce, 2); }
  // Averages over hosts what was reduced inside hosts: all ranks of a host send their parts at the same time
  // over links that they share.
  Ring average() const { return {device_.between_hosts, device_.hosts, 2, true}; }

 private:
  Ring of(Mode mode, Collective hop, int64_t passes) const {
    if (traits(mode).inside_hosts) return {hop, device_.ranks / device_.hosts, passes, false};
    if (device_.hosts > 1) {  // waits for its slowest link
      hop.alpha_s = std::max(hop.alpha_s, device_.between_hosts.alpha_s);
      hop.beta_s_per_byte = std::max(hop.beta_s_per_byte, device_.between_hosts.beta_s_per_byte);
    }
    return {hop, device_.ranks, passes, device_.hosts > 1};
  }

  const Device& device_;
};

}  // namespace osdp::search
