// The time of collectives, the one formula of objective, simulator and bound. (The checkers in certificate/
// have their own.)
//
// Note [Protocols of NCCL]
// A machine that was measured has a line for each kind of collective: a ring of hops that all take what its
// slowest one takes. NCCL has several ways to run a collective (algorithm and protocol), estimates the time
// of each from a table (src/graph/tuning.cc; of version 2.30.7 in the shipped machines), and takes the
// fastest. A device with `protocols` is priced like that, over N ranks on H hosts, where a link moves 1/beta
// bytes/s:
//   Ring      (N-H) hops inside a host and H-1 between hosts, twice that for an all-reduce; (N-1)/N S / share
//             beta, likewise twice.
//   Tree      all-reduce only: a chain of N/H - 1 hops inside a host and log2 H between hosts, up and down;
//             2 S / share beta.
//   InSwitch  all-reduce inside a host only (NVLS): no hops; (N-1)/N S / share beta, since the switch adds.
// The least of these lines is a concave function of S. Its `transfer` is the part that the fastest line takes
// per byte, which the link is busy with; the rest is latency. It grows with S, up to that of the fastest
// line, but never by more than what it would take apart. So a unit's latency is at least that of any of its
// members, which is what the step bound counts on. Left out of NCCL's estimate: corrections of trees by size,
// and of rings where it sends from the network's buffers.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <memory>

#include "search/problem/request.hpp"

namespace osdp::search {

// The time of one kind of collective over one group of ranks, as a function of its bytes; or of two, one
// after the other, of the same bytes.
class CollectiveTime {
 public:
  // `passes` over a ring: one for an all-gather or a reduce-scatter, two for an all-reduce.
  CollectiveTime(const Device& device, const Collective& hop, int64_t ranks, int64_t hosts, int64_t passes,
                 bool between_hosts)
      : hop_(hop), ranks_(ranks), passes_(passes), between_hosts_(between_hosts) {
    if (ranks == 1) return;
    for (const Protocol& p : device.protocols) add(p, hosts);
  }

  CollectiveTime and_then(const CollectiveTime& other) const {
    CollectiveTime both = *this;
    both.then_ = std::make_shared<const CollectiveTime>(other);
    return both;
  }

  bool between_hosts() const { return between_hosts_; }  // whether it uses the link between hosts, at first

  // `latency`: the fraction of its latency that counts.
  double seconds(int64_t bytes, double latency = 1) const {
    const double then = then_ ? then_->seconds(bytes, latency) : 0;
    if (lines_ == 0) return of_hops(hop_, bytes, latency) + then;
    const double transfer = static_cast<double>(bytes) * least().s_per_byte, all = fastest(bytes);
    return (latency == 1 ? all : transfer + latency * (all - transfer)) + then;
  }
  double transfer_s(int64_t bytes) const { return seconds(bytes, 0); }
  // The part of it on links inside hosts, if it also uses that between hosts.
  double inside_s(int64_t bytes) const { return then_ ? then_->transfer_s(bytes) : 0; }
  double latency_s(int64_t bytes) const {
    const double then = then_ ? then_->latency_s(bytes) : 0;
    if (lines_ == 0) return of_hops(hop_, 0, 1) + then;
    return std::max(0.0, fastest(bytes) - static_cast<double>(bytes) * least().s_per_byte) + then;
  }
  // Of any number of bytes.
  double largest_latency_s() const {
    return (lines_ == 0 ? of_hops(hop_, 0, 1) : least().latency_s) + (then_ ? then_->largest_latency_s() : 0);
  }
  // What each hop of a ring takes longer by `more`; `latency`: the fraction of its latency that counts.
  double more_s(int64_t bytes, const Collective& more, double latency) const {
    return of_hops(more, bytes, latency) + (then_ ? then_->more_s(bytes, more, latency) : 0);
  }
  // Each hop of a ring takes `more`.
  double delayed_s(int64_t bytes, const Collective& more) const {
    const double then = then_ ? then_->delayed_s(bytes, more) : 0;
    if (lines_ > 0) return fastest(bytes) + of_hops(more, bytes, 1) + then;
    return of_hops({hop_.alpha_s + more.alpha_s, hop_.beta_s_per_byte + more.beta_s_per_byte}, bytes, 1) +
           then;
  }

 private:
  struct Line {
    double latency_s = 0, s_per_byte = 0;
  };

  double of_hops(const Collective& hop, int64_t bytes, double latency) const {
    const auto n = static_cast<double>(ranks_);
    return static_cast<double>(passes_) *
           ((n - 1) * (latency * hop.alpha_s + static_cast<double>(bytes) / n * hop.beta_s_per_byte));
  }
  double fastest(int64_t bytes) const {
    double fastest = 0;
    for (size_t i = 0; i < lines_; ++i) {
      const double s = line_[i].latency_s + static_cast<double>(bytes) * line_[i].s_per_byte;
      if (i == 0 || s < fastest) fastest = s;
    }
    return fastest;
  }
  const Line& least() const { return line_[least_]; }

  void add(const Protocol& p, int64_t hosts) {
    if (p.algorithm != Algorithm::Ring && passes_ != 2) return;
    if (p.algorithm == Algorithm::InSwitch && hosts > 1) return;
    const auto n = static_cast<double>(ranks_), times = static_cast<double>(passes_);
    double beta = hop_.beta_s_per_byte / p.bandwidth_share;
    if (p.most_bytes_per_s > 0) beta = std::max(beta, 1 / p.most_bytes_per_s);
    int64_t inner = 0, outer = 0;
    double sent = (n - 1) / n;
    if (p.algorithm == Algorithm::Ring) {
      inner = ranks_ - hosts, outer = hosts - 1;
      sent *= times;
    } else if (p.algorithm == Algorithm::Tree) {
      inner = ranks_ / hosts - 1, outer = std::bit_width(static_cast<uint64_t>(hosts)) - 1;
      sent = 2;
    }
    const double hops =
        static_cast<double>(inner) * p.inner_hop_s + static_cast<double>(outer) * p.outer_hop_s;
    line_[lines_] = {p.base_s + times * hops, sent * beta};
    if (line_[lines_].s_per_byte < line_[least_].s_per_byte ||
        (line_[lines_].s_per_byte == line_[least_].s_per_byte &&
         line_[lines_].latency_s < line_[least_].latency_s))
      least_ = lines_;
    ++lines_;
  }

  Collective hop_;
  int64_t ranks_, passes_;
  bool between_hosts_;
  std::array<Line, kMostProtocols> line_;
  size_t lines_ = 0, least_ = 0;
  std::shared_ptr<const CollectiveTime> then_;
};

class Collectives {
 public:
  explicit Collectives(const Device& d)
      : all_gather_(everywhere(d, d.all_gather, 1)),
        reduce_scatter_(everywhere(d, d.reduce_scatter, 1)),
        all_reduce_(everywhere(d, d.all_reduce, 2)),
        gather_inside_(inside(d, d.all_gather)),
        reduce_inside_(inside(d, d.reduce_scatter)),
        average_(d, d.between_hosts, d.hosts, d.hosts, 2, true),
        between_(d, d.between_hosts, d.hosts, d.hosts, 1, true),
        gather_by_hosts_(between_.and_then(gather_inside_)) {}

  const CollectiveTime& gather(Mode mode) const {
    if (traits(mode).by_hosts) return gather_by_hosts_;
    return traits(mode).inside_hosts ? gather_inside_ : all_gather_;
  }
  // A gather after the first one of a forward, until its backward is over.
  const CollectiveTime& gather_again(Mode mode) const {
    return traits(mode).second ? gather_inside_ : gather(mode);
  }
  const CollectiveTime& reduce(Mode mode) const {
    return reduced_between(traits(mode)) ? reduce_inside_ : reduce_scatter_;
  }
  const CollectiveTime& all_reduce() const { return all_reduce_; }
  // Averages over hosts what was reduced inside hosts, if that is so: all ranks of a host send their parts at
  // the same time over links that they share. An all-reduce, or half of it where each rank keeps a part.
  const CollectiveTime& average(Mode mode) const { return traits(mode).by_hosts ? between_ : average_; }

 private:
  static CollectiveTime inside(const Device& d, const Collective& hop) {
    return {d, hop, d.ranks / d.hosts, 1, 1, false};
  }
  static CollectiveTime everywhere(const Device& d, Collective hop, int64_t passes) {
    if (d.hosts > 1) {  // waits for its slowest link
      hop.alpha_s = std::max(hop.alpha_s, d.between_hosts.alpha_s);
      hop.beta_s_per_byte = std::max(hop.beta_s_per_byte, d.between_hosts.beta_s_per_byte);
    }
    return {d, hop, d.ranks, d.hosts, passes, d.hosts > 1};
  }

  CollectiveTime all_gather_, reduce_scatter_, all_reduce_, gather_inside_, reduce_inside_, average_;
  CollectiveTime between_, gather_by_hosts_;  // after what they are made of
};

}  // namespace osdp::search
