// An independent check of a solution. Everything is recomputed from the problem and the multiplier alone, in
// 128-bit integers; no code is shared with the search.
#pragma once

#include "search/problem/problem.hpp"

namespace osdp::search {

// What a solution claims.
struct Certificate {
  int64_t time_ps = 0;
  int64_t memory_bytes = 0;
  int64_t lower_bound_ps = 0;
  Multiplier multiplier;
};

// Decimal digits, for messages.
std::string decimal(int128 v);

// A lower bound of every plan's time by weak duality: for every lambda = p/q >= 0 and every plan within the
// limit,
//   time >= sum over operators of min over options of (t + lambda m)  -  lambda * limit,
// rounded up because times are integers. A negative result proves nothing.
int64_t proven_lower_bound(const ProblemView& problem, Multiplier multiplier);

// Empty if the claims hold: every choice exists, time and memory are what the choices cost, memory is within
// the limit, and no plan is faster than lower_bound_ps. Otherwise one line that says which claim is false.
std::string check(const ProblemView& problem, const std::vector<int>& choices, const Certificate& claims);

}  // namespace osdp::search
