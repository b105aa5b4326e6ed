// Whether any plan of a bare problem is faster than a lower bound says. Like
// certificate/knapsack_certificate.hpp it shares no code with the search.
//
// Note [Checking a lower bound]
// A multiplier proves a bound by itself (certificate/knapsack_certificate.hpp), but not always all that the
// search proved: between the two is the duality gap. A plan of time T within the limit has reduced costs (t +
// lambda m, less the operator's least) that sum to at most T + lambda limit - the sum of the least. For a T
// just below the claimed bound that is little, so most options of most operators are out, and the sums of
// those that are left are listed, operator by operator, without those that another sum is no worse than in
// time and memory. Where none is left at the end, no plan is faster. Where the lists grow beyond what was
// allowed, the claim stays unproven: this is a plain dynamic program, the search knows more ways to cut.
#pragma once

#include "search/certificate/knapsack_certificate.hpp"

namespace osdp::search {

inline constexpr int64_t kBoundWork = 20'000'000;

enum class BoundHolds { Yes, No, Unknown };

struct BoundCheck {
  BoundHolds holds = BoundHolds::Unknown;
  int64_t faster_ps = 0;  // No: a plan within the limit takes so long, less than the bound
  int64_t given_ps = 0;   // what the given multiplier proves
  int64_t proven_ps = 0;  // what the best one proves, but for rounding
};

// `bound_ps`: what is claimed that no plan within the limit is faster than. At most `work` sums are listed.
// Throws InvalidProblem for a problem that means nothing.
BoundCheck check_bound(const ProblemView& problem, int64_t bound_ps, Multiplier multiplier,
                       int64_t work = kBoundWork);

// Like check() in certificate/knapsack_certificate.hpp, and also that the lower bound holds, however far
// above the multiplier's it is, and that no other multiplier proves more. Where `work` does not suffice, the
// line says so.
std::string check_all(const ProblemView& problem, const std::vector<int>& choices, const Certificate& claims,
                      int64_t work = kBoundWork);

}  // namespace osdp::search
