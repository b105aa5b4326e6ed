// Memory and time of one option of an operator, for the checker. It shares no code with problem/cost.hpp,
// which computes the same for the search, so an error in either makes a plan's check fail.
//   Cost::Paper: the paper's formulas.
//   Cost::Osdp: what is in memory whatever the timing, and what the option adds to the step bound
//   (certificate/bound_cost.hpp).
#pragma once

#include "search/problem/plain_plan.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {

struct OptionCost {
  PlainPlan::Choice choice;
  int64_t state_bytes = 0;      // parameters, gradients and optimizer state on the rank that holds most
  int64_t gradient_bytes = 0;   // part of state_bytes: allocated in the operator's backward
  int64_t own_phase_bytes = 0;  // in addition, while its backward runs
  int64_t summed_bytes = 0;     // part of own_phase_bytes that earlier micro-batches have allocated
  int64_t kept_bytes = 0;       // gathered parameters kept until its backward is over
  int64_t late_bytes = 0;       // part of own_phase_bytes: not beside what others left
  int64_t left_bytes = 0;       // of its gradient, on streams until the next reduction
  int64_t held_bytes = 0;       // gathered parameters held in the phases of a block recomputed with `hold`
  int128 micro_batch = 0;       // time in 2^10ths of a picosecond: of communication, or in the bound
  int64_t optimizer_ps = 0;     // per step
};

// All options in the search space; empty for an operator without parameters. Throws InvalidProblem if a time
// is invalid, or if there are too many options.
std::vector<OptionCost> option_costs(const Operator& op, const Request& request, Recompute recompute);

// A time in seconds, converted to picoseconds and rounded.
int64_t rounded_ps(double seconds, const std::string& name);

}  // namespace osdp::search
