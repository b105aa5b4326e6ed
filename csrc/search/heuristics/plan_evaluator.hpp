// Evaluates plans of one problem, given as decisions: the simulated time of a step (simulate/simulate.hpp)
// with operators grouped into units, and the memory of its largest phase (problem/phases.hpp).
#pragma once

#include <optional>
#include <utility>

#include "search/branch/runners_up.hpp"
#include "search/simulate/play_plan.hpp"

namespace osdp::search {

struct IndexedPlan {
  Batch batch;
  Decision decision;
  int64_t prefetch = 1;  // of Space::prefetches
  bool operator==(const IndexedPlan&) const = default;
};

// With as little gathered ahead as the space has.
inline IndexedPlan indexed_plan(const Found& found, const Space& space) {
  return {found.batch, found.decision, space.prefetches.front()};
}

// `request` and `player` must outlive it; `request` may differ from the player's in objective, limit and
// batches. Not const: it counts simulations and keeps the last plan's step.
class PlanEvaluator {
 public:
  // `most_bytes`: what the largest peak of a plan may be; its memory for gathered units is what that leaves.
  // `times`: the batch whose times the objective has; 0: the model's own.
  PlanEvaluator(const Request& request, const PlanPlayer& player, int64_t most_bytes, int64_t times = 0);
  PlanEvaluator(const PlanEvaluator&) = delete;
  PlanEvaluator& operator=(const PlanEvaluator&) = delete;

  const Model& model() const { return model_; }
  const Request& request() const { return request_; }
  const EquivalenceClasses& classes() const { return classes_; }

  // Throws InvalidProblem if `plan` is for another model, or if one of its choices does not exist.
  void check(const IndexedPlan& plan) const;
  // Memory of each phase: what is held whatever the timing.
  std::vector<int64_t> phases(const IndexedPlan& plan) const;
  // That of the largest one.
  int64_t peak_bytes(const IndexedPlan& plan) const;
  // The largest peak of the plan's own step (Planner::largest_peak).
  int64_t largest_peak_bytes(const IndexedPlan& plan);
  // Simulates a whole step with all its micro-batches.
  PlayedStep play(const IndexedPlan& plan);
  int64_t step_ps(const IndexedPlan& plan) { return play(plan).step_ps; }
  // The plan's objective.
  int64_t objective_ps(const IndexedPlan& plan) const;
  // With shares: no plan with these choices has a faster step, whatever is gathered ahead. 0: nothing is
  // known.
  int64_t bound_ps(const IndexedPlan& plan);
  int64_t plays() const { return plays_; }

  const std::vector<Candidate>& candidates(int op, Recompute way) const;
  Recompute way_of(int op, const Decision& decision) const;
  // The plan as plain values.
  PlainPlan plain(const IndexedPlan& plan);

 private:
  struct Built {
    IndexedPlan plan;
    Step step;
    int64_t largest_peak_bytes = 0;
  };
  const Built& build(const IndexedPlan& plan);
  PlainPlan choices_of(const IndexedPlan& plan) const;

  const Request& request_;
  const PlanPlayer& player_;
  StepBuilder builder_;
  const Model& model_;
  const int64_t most_bytes_;
  const EquivalenceClasses classes_;
  std::vector<const Slot*> slots_;  // by operator
  std::optional<EquivalenceClasses> of_bound_;
  int64_t plays_ = 0;
  std::optional<Built> built_;  // the last plan's: memory and time are asked for in turn
};

}  // namespace osdp::search
