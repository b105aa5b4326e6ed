// Simulates a plan of a model: from its choices and units to the time of a step.
#pragma once

#include <array>

#include "search/problem/timed_model.hpp"
#include "search/simulate/simulate.hpp"
#include "search/simulate/step_of_plan.hpp"
#include "search/simulate/unit_grouping.hpp"

namespace osdp::search {

// How the runtime executes plans.
struct Manner {
  std::vector<Place> places;     // one per entry of Model::operators
  int64_t small_unit_bytes = 0;  // smaller units are joined with a neighbour
  Lanes lanes;
  Collective delay;             // additional time of one ring step while this rank computes
  int64_t stolen_permille = 0;  // see `play`
};

// Operators gathered together, as ascending indices.
using Members = std::vector<int>;

// Where an event runs: the caller's thread or stream, or one of the lanes.
enum class Resource : int { Computation, Communication, Reductions, BetweenHosts };
inline constexpr std::array<const char*, 4> kResources{"computation", "communication", "reductions",
                                                       "between hosts"};

struct TimelineEvent {
  Resource resource = Resource::Computation;
  StepEvent::Kind action = StepEvent::Kind::Compute;
  StepPhase phase = StepPhase::Forward;
  std::string name;  // of the operator, unit or bucket; "optimizer"
  int64_t begin_ps = 0, end_ps = 0;
};

struct Timeline {
  PlayedStep step;
  std::vector<TimelineEvent> events;  // one per entry of step.events
  int64_t largest_peak_bytes = 0;     // over all timings: simulate/largest_peak.hpp
};

// Simulates many plans of one model; model and request are validated once.
class PlanPlayer {
 public:
  // `model` and `request` must outlive it. Throws InvalidProblem for malformed arguments.
  PlanPlayer(const TimedModel& model, const Request& request, Manner manner);

  // With the times of a batch; 0: its own.
  const Model& model(int64_t batch = 0) const { return model_.at(batch); }
  const Manner& manner() const { return manner_; }

  // The units of a plan (simulate/unit_grouping.hpp); traced operators are not joined beyond
  // `transient_bytes`, the largest transient among the plan's choices.
  std::vector<Members> units(const PlainPlan& plan, int64_t transient_bytes) const;
  // The step of a plan, for the methods below.
  Step step(const PlainPlan& plan, const std::vector<Members>& units) const;
  // The same, of many plans.
  Step step(const PlainPlan& plan, const std::vector<Members>& units, StepBuilder& builder) const;
  StepBuilder builder() const { return {request_, manner_.delay, manner_.lanes}; }
  // Simulates a step without recording events and memory. Every micro-batch ends by waiting for all
  // communication, so all after the first take equally long, and at most two are simulated; in a stage of a
  // pipeline all but the first and the last, and at most three. Throws InvalidProblem if the time overflows.
  PlayedStep play(const Step& step) const;
  // The largest memory peak over all possible durations of communication (simulate/largest_peak.hpp).
  int64_t largest_peak(const Step& step) const;
  // The same, after the memory for gathered units was set to what a limit leaves, or to that of the unit in
  // use alone (Note [Budget for gathering] in simulate/gather_budget.hpp).
  int64_t fit(Step& step, int64_t most_bytes) const;
  // Simulates every micro-batch and records all events.
  Timeline timeline(const PlainPlan& plan, const std::vector<Members>& units) const;

 private:
  PlannedUnit planned(const Members& members) const;
  int64_t fit_largest(Step& step, int64_t most_bytes) const;

  const TimedModel& model_;
  const Request& request_;
  const Manner manner_;
};

}  // namespace osdp::search
