// An independent check of a whole plan: its time, the memory of every phase, and the Lagrangian bound at the
// prices in its certificate. Everything is computed from the costs of single options
// (certificate/option_cost.hpp) by the definitions of docs/search.md, operator by operator and in 128-bit
// integers; no code is shared with the search.
#pragma once

#include "search/problem/plain_plan.hpp"

namespace osdp::search {

struct PhasePrice {
  int phase = 0;  // operator whose backward runs; -1: the sum over the whole step (Cost::Paper)
  int64_t numerator = 0;
};

struct PlanClaims {
  int64_t time_ps = 0;       // of a step
  int64_t memory_bytes = 0;  // of the largest phase
  int64_t lower_bound_ps = 0;
  std::vector<PhasePrice> prices;
  int64_t denominator = 1;  // of all prices, in ps per byte
};

// Lower bounds of the time of every plan with this plan's batch and no larger transients: for all prices
// p_j / q >= 0
//   time >= sum over operators and blocks of min over choices of (t + sum_j p_j/q m_j) - sum_j p_j/q limit,
// rounded up. One bound for each list of prices in `alternatives`. Checks no claim about the plan itself.
std::vector<int64_t> plan_lower_bounds(const Model& model, const Request& request, const PlainPlan& plan,
                                       const std::vector<std::vector<PhasePrice>>& alternatives,
                                       int64_t denominator);

// Empty if the claims hold; otherwise one line that says which is false. request.limit_bytes is the claimed
// limit.
std::string check_plan(const Model& model, const Request& request, const PlainPlan& plan,
                       const PlanClaims& claims);

}  // namespace osdp::search
