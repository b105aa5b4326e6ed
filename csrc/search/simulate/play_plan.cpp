#include "search/simulate/play_plan.hpp"

#include <algorithm>
#include <set>

#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

PlannedUnit planned(const Model& model, const Manner& manner, const Members& members) {
  PlannedUnit unit;
  std::set<std::pair<int, int>> calls;
  for (int i : members) {
    if (i < 0 || static_cast<size_t>(i) >= manner.places.size())
      throw InvalidProblem("a unit has an unknown operator");
    const Place& place = manner.places[i];
    for (const Span& s : place.calls) calls.insert({s.first, s.last});
    unit.repeats = std::max(unit.repeats, place.repeats);
  }
  for (const auto& [first, last] : calls) unit.calls.push_back({first, last});
  if (!members.empty()) unit.name = model.operators[members.front()].name;
  unit.operators = members;
  return unit;
}

Step step_of_units(const Model& model, const Request& request, const Manner& manner, const PlainPlan& plan,
                   const std::vector<Members>& units) {
  if (manner.places.size() != model.operators.size())
    throw InvalidProblem("the places of " + std::to_string(manner.places.size()) + " operators for " +
                         std::to_string(model.operators.size()));
  std::vector<PlannedUnit> joined;
  for (const Members& members : units) joined.push_back(planned(model, manner, members));
  return step_of(model, request, plan, joined, manner.prefetch, manner.delay, manner.lanes);
}

Resource resource_of(const Step& step, StepEvent::Kind kind) {
  switch (kind) {
    case StepEvent::Kind::Compute:
      return Resource::Computation;
    case StepEvent::Kind::Average:
      return Resource::BetweenHosts;
    case StepEvent::Kind::Gather:
      return Resource::Communication;
    case StepEvent::Kind::Reduce:
    case StepEvent::Kind::ReduceBucket:
      break;
  }
  return step.lanes.separate_reductions ? Resource::Reductions : Resource::Communication;
}

std::string name_of(const Step& step, const StepEvent& event) {
  if (event.kind == StepEvent::Kind::ReduceBucket) return step.buckets[event.what].name;
  if (event.kind != StepEvent::Kind::Compute) return step.units[event.what].name;
  return event.what < 0 ? "optimizer" : step.operators[event.what].name;
}

// After two micro-batches, every further one takes what the second did.
int64_t lasting(int64_t one, int64_t two, int64_t times) {
  const int128 all = two + static_cast<int128>(times - 2) * (two - one);
  if (all > kLargestSum) throw InvalidProblem("a step's time overflows 2^61 ps");
  return static_cast<int64_t>(all);
}

}  // namespace

std::vector<Members> units_of(const Request& request, const Manner& manner, const PlainPlan& plan,
                              int64_t transient_bytes) {
  if (plan.choices.size() != manner.places.size())
    throw InvalidProblem("choices are not beside the operators");
  std::vector<Sharding> shardings;
  for (const PlainPlan::Choice& c : plan.choices) shardings.push_back({c.mode, c.granularity});
  return group_units(manner.places, shardings, request.space.bucket_bytes, manner.small_unit_bytes,
                     transient_bytes);
}

Timeline timeline_of(const Model& model, const Request& request, const Manner& manner, const PlainPlan& plan,
                     const std::vector<Members>& units) {
  const Step step = step_of_units(model, request, manner, plan, units);
  Timeline timeline{play(step, manner.stolen_permille), {}};
  for (const StepEvent& e : timeline.step.events)
    timeline.events.push_back(
        {resource_of(step, e.kind), e.kind, e.phase, name_of(step, e), e.begin_ps, e.end_ps});
  return timeline;
}

PlayedStep play_plan(const Model& model, const Request& request, const Manner& manner, const PlainPlan& plan,
                     const std::vector<Members>& units) {
  const int64_t times = plan.batch.accumulation;
  PlainPlan fewer = plan;
  const auto played = [&](int64_t accumulation) {
    fewer.batch.accumulation = accumulation;
    return play(step_of_units(model, request, manner, fewer, units), manner.stolen_permille);
  };
  PlayedStep all = played(std::min<int64_t>(times, 2));
  all.events.clear(), all.memory.clear();
  if (times <= 2) return all;
  const PlayedStep one = played(1);
  for (const auto part : {&PlayedStep::step_ps, &PlayedStep::only_computing_ps, &PlayedStep::both_ps,
                          &PlayedStep::only_communicating_ps})
    all.*part = lasting(one.*part, all.*part, times);
  return all;
}

}  // namespace osdp::search
