// The step that a plan's units make, with what each collective takes: the additive costs of problem/cost.hpp
// say what an operator adds to a step by itself, this says what its unit does when it is gathered and reduced
// with its neighbours.
#pragma once

#include "search/problem/plain_plan.hpp"
#include "search/simulate/step.hpp"

namespace osdp::search {

// Operators gathered and reduced together, all of one mode; a split operator is alone.
struct PlannedUnit {
  std::string name;
  std::vector<int> operators;  // rising
  std::vector<Span> calls;     // during which operators' computation it is there, one per gathering module
  int64_t repeats = 1;         // calls of each of these modules in a forward
};

// `delay`: what one step of a ring takes longer while this rank computes. Model, request and delay have been
// validated; throws InvalidProblem where the plan does not fit the model, or an operator cannot be treated
// so.
Step step_of(const Model& model, const Request& request, const PlainPlan& plan,
             std::vector<PlannedUnit> units, int64_t prefetch, const Collective& delay, Lanes lanes = {});

}  // namespace osdp::search
