// Durations of units' collectives on their lane, for step_of_plan.
#pragma once

#include <algorithm>

#include "search/problem/collective_time.hpp"
#include "search/problem/problem.hpp"
#include "search/simulate/step.hpp"

namespace osdp::search {

// `delay`: additional time of one ring step while this rank computes.
class LaneTimes {
 public:
  LaneTimes(const Device& device, const Collective& delay)
      : collectives_(device), copy_(device.host.copy), delay_(delay) {}

  LaneTime gather(int64_t bytes, Mode mode) const { return time(collectives_.gather(mode), bytes); }
  LaneTime gather_again(int64_t bytes, Mode mode) const {
    return time(collectives_.gather_again(mode), bytes);
  }
  LaneTime reduce(int64_t bytes, Mode mode) const { return time(collectives_.reduce(mode), bytes); }
  LaneTime all_reduce(int64_t bytes) const { return time(collectives_.all_reduce(), bytes); }
  LaneTime average(int64_t bytes, Mode mode) const {
    return reduced_between(traits(mode)) ? time(collectives_.average(mode), bytes) : LaneTime{};
  }
  // To or from host memory.
  int64_t copy_ps(int64_t bytes) const {
    const double seconds = copy_.alpha_s + static_cast<double>(bytes) * copy_.beta_s_per_byte;
    return bytes == 0 ? 0 : picoseconds(seconds, "a copy");
  }

 private:
  // Without and with concurrent computation.
  LaneTime time(const CollectiveTime& of, int64_t bytes) const {
    if (bytes == 0) return {};
    const auto ps = [](double seconds) { return picoseconds(seconds, "a collective"); };
    const int64_t alone = ps(of.seconds(bytes));
    const int64_t transfer = std::min(alone, ps(of.transfer_s(bytes)));
    return {alone, ps(of.delayed_s(bytes, delay_)), transfer,
            of.between_hosts() ? Link::BetweenHosts : Link::InsideHost,
            std::min(transfer, ps(of.inside_s(bytes)))};
  }

  const Collectives collectives_;
  const Collective copy_, delay_;
};

}  // namespace osdp::search
