#include "search/simulate/play_plan.hpp"

#include <algorithm>

#include "search/problem/problem.hpp"
#include "search/problem/validate.hpp"
#include "search/simulate/gather_budget.hpp"
#include "search/simulate/largest_peak.hpp"

namespace osdp::search {
namespace {

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

// A total with `more` further parts of `each`.
int64_t lasting(int64_t total, int64_t each, int64_t more) {
  const int128 all = total + static_cast<int128>(more) * each;
  if (all > kLargestSum) throw InvalidProblem("a step's time overflows 2^61 ps");
  return static_cast<int64_t>(all);
}

// Further micro-batches take and hold as much as one of so many: all but the first are alike, in a stage of a
// pipeline all but the first and the last.
int64_t alike(const Step& step) { return step.buckets_once ? 3 : 2; }

Step with_micro_batches(Step step, int64_t micro_batches) {
  step.accumulation = micro_batches;
  return step;
}

}  // namespace

PlanPlayer::PlanPlayer(const TimedModel& model, const Request& request, Manner manner)
    : model_(model), request_(request), manner_(std::move(manner)) {
  validate(model.own());
  validate(request);
  validate(manner_.delay);
  const size_t operators = model.own().operators.size();
  if (manner_.places.size() != operators)
    throw InvalidProblem("the places of " + std::to_string(manner_.places.size()) + " operators for " +
                         std::to_string(operators));
}

std::vector<Members> PlanPlayer::units(const PlainPlan& plan, int64_t transient_bytes) const {
  if (plan.choices.size() != manner_.places.size())
    throw InvalidProblem("choices are not beside the operators");
  std::vector<Sharding> shardings;
  shardings.reserve(plan.choices.size());
  for (const PlainPlan::Choice& c : plan.choices) shardings.push_back({c.mode, c.granularity});
  return group_units(manner_.places, shardings, request_.space.bucket_bytes, manner_.small_unit_bytes,
                     transient_bytes);
}

PlannedUnit PlanPlayer::planned(const Members& members) const {
  PlannedUnit unit;
  for (int i : members) {
    if (i < 0 || static_cast<size_t>(i) >= manner_.places.size())
      throw InvalidProblem("a unit has an unknown operator");
    const Place& place = manner_.places[i];
    unit.calls.insert(unit.calls.end(), place.calls.begin(), place.calls.end());
    unit.repeats = std::max(unit.repeats, place.repeats);
  }
  std::sort(unit.calls.begin(), unit.calls.end());
  unit.calls.erase(std::unique(unit.calls.begin(), unit.calls.end()), unit.calls.end());
  if (!members.empty()) unit.name = model_.own().operators[members.front()].name;
  unit.operators = members;
  return unit;
}

Step PlanPlayer::step(const PlainPlan& plan, const std::vector<Members>& units) const {
  StepBuilder once = builder();
  return step(plan, units, once);
}

Step PlanPlayer::step(const PlainPlan& plan, const std::vector<Members>& units, StepBuilder& builder) const {
  std::vector<PlannedUnit> joined;
  joined.reserve(units.size());
  for (const Members& members : units) joined.push_back(planned(members));
  return builder.build(model(plan.batch.size), plan, std::move(joined));
}

int64_t PlanPlayer::largest_peak(const Step& step) const {
  return osdp::search::largest_peak(step.accumulation <= alike(step) ? step
                                                                     : with_micro_batches(step, alike(step)));
}

// Note [Budget for gathering]
int64_t PlanPlayer::fit(Step& step, int64_t most_bytes) const {
  const int64_t peak = fit_largest(step, most_bytes);
  if (manner_.stolen_permille <= 1000 || step.prefetch == 0 || step.units.empty()) return peak;
  Step alone = step;
  alone.gather_bytes = 1;
  if (play(alone).step_ps > play(step).step_ps) return peak;
  step.gather_bytes = 1;
  return largest_peak(step);
}

int64_t PlanPlayer::fit_largest(Step& step, int64_t most_bytes) const {
  if (step.accumulation <= alike(step)) return fit_gather_bytes(step, most_bytes);
  Step few = with_micro_batches(step, alike(step));
  const int64_t peak = fit_gather_bytes(few, most_bytes);
  step.gather_bytes = few.gather_bytes;
  return peak;
}

Timeline PlanPlayer::timeline(const PlainPlan& plan, const std::vector<Members>& units) const {
  const Step all = step(plan, units);
  Timeline timeline{osdp::search::play(all, manner_.stolen_permille), {}, largest_peak(all)};
  for (const StepEvent& e : timeline.step.events)
    timeline.events.push_back(
        {resource_of(all, e.kind), e.kind, e.phase, name_of(all, e), e.begin_ps, e.end_ps});
  return timeline;
}

PlayedStep PlanPlayer::play(const Step& step) const {
  const int64_t few = std::min(step.accumulation, alike(step)), more = step.accumulation - few;
  PlayedStep all = osdp::search::play(more > 0 ? with_micro_batches(step, few) : step,
                                      manner_.stolen_permille, Record::Totals);
  for (const auto part : {&StepParts::step_ps, &StepParts::only_computing_ps, &StepParts::both_ps,
                          &StepParts::only_communicating_ps})
    if (more > 0) all.*part = lasting(all.*part, all.ends[1].*part - all.ends[0].*part, more);
  return all;
}

}  // namespace osdp::search
