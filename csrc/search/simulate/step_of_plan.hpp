// Builds the step of a plan's units, with the duration of each collective. The additive costs of
// problem/cost.hpp give what a single operator adds to a step; here operators are gathered and reduced in
// units with their neighbours.
#pragma once

#include "search/problem/plain_plan.hpp"
#include "search/simulate/step.hpp"

namespace osdp::search {

// Operators gathered and reduced together, all of one mode; a split operator is alone.
struct PlannedUnit {
  std::string name;
  std::vector<int> operators;  // ascending
  std::vector<Span> calls;     // operators during which it must be gathered, one span per gathering module
  int64_t repeats = 1;         // calls of each of these modules in a forward
};

// `delay`: additional time of one ring step while this rank computes. Model, request and delay must be valid;
// throws InvalidProblem if the plan does not match the model, or if an operator cannot be sharded in the way
// it says.
Step step_of(const Model& model, const Request& request, const PlainPlan& plan,
             std::vector<PlannedUnit> units, const Collective& delay, Lanes lanes = {});

}  // namespace osdp::search
