// Note [What fits]
// A plan fits if the largest peak of its own step (simulate/largest_peak.hpp) keeps the limit, less one part
// in kMargin of it for memory that kernel libraries allocate themselves (at most 0.7% of the peaks measured).
// That is the rule for every plan. Searches count what phases hold whatever the timing (Note [Phases] in
// problem/phases.hpp), a sum over operators that is never above the peak. With the paper's costs, and for one
// rank, nothing is simulated and the limit is that of the sum.
#pragma once

#include <cstdint>

namespace osdp::search {

class PeakLimit {
 public:
  explicit PeakLimit(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // What the largest peak of a plan may be.
  int64_t most_bytes() const { return limit_bytes_ - limit_bytes_ / kMargin; }
  // Bytes by which a plan is below what it may be; negative if it is over.
  int64_t spare(int64_t largest_peak_bytes) const { return most_bytes() - largest_peak_bytes; }
  // The smallest limit that a plan with this largest peak keeps.
  static int64_t smallest(int64_t largest_peak_bytes) {
    return largest_peak_bytes + (largest_peak_bytes - 1) / (kMargin - 1);
  }

 private:
  static constexpr int64_t kMargin = 100;

  int64_t limit_bytes_;
};

}  // namespace osdp::search
