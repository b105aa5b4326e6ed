// Builds the step of a plan's units, with the duration of each collective. The additive costs of
// problem/cost.hpp give what a single operator adds to a step; here operators are gathered and reduced in
// units with their neighbours.
#pragma once

#include <utility>

#include "search/problem/cost.hpp"
#include "search/problem/plain_plan.hpp"
#include "search/simulate/lane_times.hpp"
#include "search/simulate/step.hpp"

namespace osdp::search {

// Operators gathered and reduced together, all of one mode; a split operator is alone.
struct PlannedUnit {
  std::string name;
  std::vector<int> operators;  // ascending
  std::vector<Span> calls;     // operators during which it must be gathered, one span per gathering module
  int64_t repeats = 1;         // calls of each of these modules in a forward
};

// What choices of single operators cost in a micro-batch, each computed once.
class ChoiceCandidates {
 public:
  explicit ChoiceCandidates(const Request& request);
  // Of operator `i` of a model; throws InvalidProblem if it cannot be sharded so. Valid until the next call.
  const Candidate& of(size_t i, const Operator& op, Recompute way, const PlainPlan::Choice& choice);

 private:
  struct Known {
    Recompute way;
    PlainPlan::Choice choice;
    Candidate candidate;
  };
  const Device device_;
  Space space_;
  std::vector<std::vector<Known>> known_;  // by operator
};

// Builds steps of plans of one model.
class StepBuilder {
 public:
  // `request` must outlive it. `delay`: additional time of one ring step while this rank computes. Both must
  // be valid.
  StepBuilder(const Request& request, const Collective& delay, Lanes lanes = {})
      : request_(request), lanes_(lanes), links_(request.device, delay), candidates_(request) {}

  // `model`: the same in all calls but for its times; must be valid. Throws InvalidProblem if the plan does
  // not match the model, or if an operator cannot be sharded in the way it says.
  Step build(const Model& model, const PlainPlan& plan, std::vector<PlannedUnit> units);

 private:
  const Request& request_;
  const Lanes lanes_;
  const LaneTimes links_;
  ChoiceCandidates candidates_;
};

inline Step step_of(const Model& model, const Request& request, const PlainPlan& plan,
                    std::vector<PlannedUnit> units, const Collective& delay, Lanes lanes = {}) {
  return StepBuilder(request, delay, lanes).build(model, plan, std::move(units));
}

}  // namespace osdp::search
