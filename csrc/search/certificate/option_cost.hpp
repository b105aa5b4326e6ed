// What one way to treat an operator holds and takes, for the checker: the columns of the tables in
// docs/search.md ("What is minimised"), each by itself. It shares no code with problem/cost.hpp, by which the
// search prices the same options, so an error in either shows as a plan that does not check.
#pragma once

#include "search/problem/plain_plan.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {

struct OptionCost {
  PlainPlan::Choice choice;
  int64_t state_bytes = 0;      // parameters, gradients and optimizer state of the fullest rank
  int64_t gradient_bytes = 0;   // of them: not there before the operator's backward
  int64_t own_phase_bytes = 0;  // beside them, while its backward runs
  int64_t kept_bytes = 0;       // gathered, until its backward is over
  int64_t held_bytes = 0;       // gathered, in the phases of a block that is recomputed with `hold`
  int64_t transient_bytes = 0;
  int64_t communication_ps = 0;  // of a micro-batch
  int64_t optimizer_ps = 0;      // of a step
};

// All that a search may choose from; none for an operator without parameters. Throws InvalidProblem where the
// figures are none, or the options too many.
std::vector<OptionCost> option_costs(const Operator& op, const Request& request, Recompute recompute);

// What every phase holds for gradients that are averaged, however operators are treated.
int128 averaging_cost_bytes(const Model& model, const Request& request, bool accumulates);

// Of a time in seconds, rounded.
int64_t rounded_ps(double seconds, const std::string& name);

}  // namespace osdp::search
