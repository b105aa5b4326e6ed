// A plan of a model, played: from its choices and units to the time of a step.
#pragma once

#include "search/simulate/simulate.hpp"
#include "search/simulate/step_of_plan.hpp"
#include "search/simulate/unit_grouping.hpp"

namespace osdp::search {

// How the runtime carries plans out.
struct Manner {
  std::vector<Place> places;     // beside Model::operators
  int64_t small_unit_bytes = 0;  // units below this are joined with a neighbour
  int64_t prefetch = 1;          // units gathered ahead
  Lanes lanes;
  Collective delay;             // what one step of a ring takes longer while this rank computes
  int64_t stolen_permille = 0;  // see `play`
};

// Operators gathered together, by index, rising.
using Members = std::vector<int>;

// Where something runs: the caller's thread or stream, or one of the lanes.
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
  std::vector<TimelineEvent> events;  // beside step.events
  int64_t largest_peak_bytes = 0;     // of any timing: simulate/largest_peak.hpp
};

// A model and how it is run, checked once, of which many plans are played.
class PlanPlayer {
 public:
  // `model` and `request` must outlive it. Throws InvalidProblem for what cannot mean anything.
  PlanPlayer(const Model& model, const Request& request, Manner manner);

  const Model& model() const { return model_; }

  // The units of a plan (simulate/unit_grouping.hpp); none that is traced is larger than `transient_bytes`,
  // the largest transient among the plan's choices.
  std::vector<Members> units(const PlainPlan& plan, int64_t transient_bytes) const;
  // A step without events and memory: at a micro-batch's end all communication has been waited for, so each
  // one takes as long as the next, and two are played at most. Throws InvalidProblem where the time
  // overflows.
  PlayedStep play(const PlainPlan& plan, const std::vector<Members>& units) const;
  // The most that a step may hold, however long its communication takes (simulate/largest_peak.hpp).
  int64_t largest_peak(const PlainPlan& plan, const std::vector<Members>& units) const;
  // Every micro-batch, event by event.
  Timeline timeline(const PlainPlan& plan, const std::vector<Members>& units) const;

 private:
  PlannedUnit planned(const Members& members) const;
  Step step(const PlainPlan& plan, const std::vector<Members>& units) const;

  const Model& model_;
  const Request& request_;
  const Manner manner_;
};

}  // namespace osdp::search
