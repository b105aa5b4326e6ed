// Checks a lower bound of a knapsack problem: whether any plan is faster. Like
// certificate/knapsack_certificate.hpp it shares no code with the search.
//
// Note [Checking a lower bound]
// A multiplier alone proves a bound (certificate/knapsack_certificate.hpp). The bound that the search proved
// may be higher, by up to the duality gap. To check it: the reduced costs (t + lambda m minus the operator's
// minimum) of a plan of time T within the limit sum to at most T + lambda limit - the sum of the minima. For
// a T just below the claimed bound this is small, which excludes most options of most operators; the
// undominated partial sums (in time and memory) of the remaining ones are enumerated operator by operator. If
// none is left at the end, no plan is faster. If the lists exceed the allowed work, the claim stays unproven:
// this is a plain dynamic program with fewer pruning rules than the search.
#pragma once

#include "search/certificate/knapsack_certificate.hpp"

namespace osdp::search {

inline constexpr int64_t kBoundWork = 20'000'000;

enum class BoundHolds { Yes, No, Unknown };

struct BoundCheck {
  BoundHolds holds = BoundHolds::Unknown;
  int64_t faster_ps = 0;  // if No: the time of a plan within the limit, below the bound
  int64_t given_ps = 0;   // bound of the given multiplier
  int64_t proven_ps = 0;  // bound of the best multiplier, up to rounding
};

// `bound_ps`: the claimed lower bound. Enumerates at most `work` sums. Throws InvalidProblem for a malformed
// problem.
BoundCheck check_bound(const ProblemView& problem, int64_t bound_ps, Multiplier multiplier,
                       int64_t work = kBoundWork);

// Like check() in certificate/knapsack_certificate.hpp; also checks that the lower bound holds even if it is
// above the multiplier's, and that no other multiplier proves more. The line also says if `work` did not
// suffice.
std::string check_all(const ProblemView& problem, const std::vector<int>& choices, const Certificate& claims,
                      int64_t work = kBoundWork);

}  // namespace osdp::search
