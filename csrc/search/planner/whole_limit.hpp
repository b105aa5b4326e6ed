// Note [The whole limit]
// So that its optimum can be proven, a search compares its limit with a sum over operators: the largest phase
// with the reserve for the largest transients (Note [Reserve]). The peak of a plan's own step
// (Planner::largest_peak) is usually smaller, by a third if one large operator is sharded. So every objective
// is searched again under larger limits of that sum, as long as its plan's own peak keeps the requested
// limit; if no sum fits, from the smallest feasible one on. The proof then covers more plans, not fewer: none
// whose sum is within `Answer::sum_limit_bytes` is better. Plans whose sum exceeds the requested limit leave
// one part in kMargin of it free, for memory that kernel libraries allocate themselves (at most 0.7% of the
// peaks measured). Rarely a peak exceeds the sum, which does not include copies of gradients whose rows the
// ranks cannot share evenly, nor a frozen unit in use around a recomputed block. Plans whose peak exceeds the
// limit are passed over; if only such were found, the plan of the smallest sum is the first, and the limit of
// the sum rises from there.
#pragma once

#include <cstdint>

#include "search/problem/problem.hpp"

namespace osdp::search {

class WholeLimit {
 public:
  // `of_sum`: the limit applies to the sum alone, and is never raised.
  explicit WholeLimit(int64_t limit_bytes, bool of_sum = false)
      : limit_bytes_(limit_bytes), of_sum_(of_sum) {}

  // Bytes by which a plan's largest peak is below what it may be; negative if it is over.
  int64_t spare(int64_t sum_bytes, int64_t largest_peak_bytes) const;
  // The smallest limit that a plan with this sum and largest peak keeps.
  static int64_t smallest(int64_t sum_bytes, int64_t largest_peak_bytes);

  int64_t limit_bytes() const { return limit_bytes_; }
  bool of_sum() const { return of_sum_; }

 private:
  int64_t limit_bytes_;
  bool of_sum_;
};

// Limits of the sum for one objective, each derived from what the plan of the one before leaves.
class SumLimits {
 public:
  // The first limit, and the number of further ones at most.
  SumLimits(WholeLimit limit, int64_t first_bytes, int most)
      : limit_(limit), kept_bytes_(first_bytes), now_bytes_(first_bytes), left_(most) {}

  int64_t now_bytes() const { return now_bytes_; }
  // Goes on to the next limit; `spare_bytes`: of the plan under the current one. False if there is none.
  bool next(int64_t spare_bytes);

 private:
  const WholeLimit limit_;
  int64_t kept_bytes_;               // the largest limit of the sum whose plan keeps the limit
  int64_t spare_bytes_ = 0;          // of that plan
  int64_t too_large_ = kLargestSum;  // the smallest limit of the sum whose plan does not
  int64_t now_bytes_;
  int left_;
};

}  // namespace osdp::search
