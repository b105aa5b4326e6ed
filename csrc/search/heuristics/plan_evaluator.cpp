#include "search/heuristics/plan_evaluator.hpp"

#include <algorithm>

#include "search/bounds/pricing.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {

PlanEvaluator::PlanEvaluator(const Request& request, const PlanPlayer& player, int64_t most_bytes,
                             int64_t times)
    : request_(request),
      player_(player),
      builder_(player.builder()),
      model_(player.model(times)),
      most_bytes_(most_bytes),
      classes_(find_equivalence_classes(model_, request)),
      slots_(model_.operators.size()) {
  for (const EquivalenceClass& cls : classes_.classes) {
    for (const auto& instance : cls.instances) {
      for (size_t p = 0; p < instance.size(); ++p) slots_[instance[p]] = &cls.slots[p];
    }
  }
}

Recompute PlanEvaluator::way_of(int op, const Decision& decision) const {
  const int block = model().operators[op].block;
  return block < 0 ? Recompute::None : decision.ways[block];
}

const std::vector<Candidate>& PlanEvaluator::candidates(int op, Recompute way) const {
  return slots_[op]->candidates[static_cast<int>(way)];
}

void PlanEvaluator::check(const IndexedPlan& plan) const {
  const Decision& d = plan.decision;
  bool good = d.choices.size() == model().operators.size() && d.ways.size() == model().blocks.size() &&
              plan.batch.size >= 1 && plan.batch.accumulation >= 1 && plan.prefetch >= 0;
  const std::vector<Recompute>& ways = request_.recompute;
  for (size_t i = 0; good && i < d.choices.size(); ++i) {
    const Recompute way = way_of(static_cast<int>(i), d);
    good = model().operators[i].block < 0 || std::find(ways.begin(), ways.end(), way) != ways.end();
    if (!good) break;
    const auto size = static_cast<int>(candidates(static_cast<int>(i), way).size());
    good = size == 0 ? d.choices[i] == -1 : d.choices[i] >= 0 && d.choices[i] < size;
  }
  if (!good) throw InvalidProblem("a plan to be played is none of this problem");
}

std::vector<int64_t> PlanEvaluator::phases(const IndexedPlan& plan) const {
  return phase_bytes(model(), request_, classes_, plan.decision, plan.batch);
}

int64_t PlanEvaluator::peak_bytes(const IndexedPlan& plan) const {
  const auto phases = this->phases(plan);
  return *std::max_element(phases.begin(), phases.end());
}

int64_t PlanEvaluator::objective_ps(const IndexedPlan& plan) const {
  return osdp::search::step_ps(classes_, plan.decision, plan.batch);
}

int64_t PlanEvaluator::bound_ps(const IndexedPlan& plan) {
  if (!request_.space.shares) return 0;
  if (!of_bound_) {
    Request bound = request_;
    bound.space.every_latency = false;
    of_bound_ = find_equivalence_classes(model(), bound);
  }
  return osdp::search::step_ps(*of_bound_, plan.decision, plan.batch);
}

PlainPlan PlanEvaluator::choices_of(const IndexedPlan& plan) const {
  PlainPlan result{plan.batch, {}, plan.decision.ways, plan.prefetch};
  for (size_t i = 0; i < plan.decision.choices.size(); ++i) {
    PlainPlan::Choice& choice = result.choices.emplace_back();
    if (plan.decision.choices[i] < 0) continue;
    const Recompute way = way_of(static_cast<int>(i), plan.decision);
    const Candidate& c = candidates(static_cast<int>(i), way)[plan.decision.choices[i]];
    choice = {c.mode, c.granularity, c.sharded_slices, c.split};
  }
  return result;
}

const PlanEvaluator::Built& PlanEvaluator::build(const IndexedPlan& plan) {
  if (built_ && built_->plan == plan) return *built_;
  const PlainPlan choices = choices_of(plan);
  Step step =
      player_.step(choices, player_.units(choices, largest_transient(classes_, plan.decision)), builder_);
  const int64_t peak = player_.fit(step, most_bytes_);
  built_ = Built{plan, std::move(step), peak};
  return *built_;
}

int64_t PlanEvaluator::largest_peak_bytes(const IndexedPlan& plan) {
  return request_.paper() ? peak_bytes(plan) : build(plan).largest_peak_bytes;
}

PlayedStep PlanEvaluator::play(const IndexedPlan& plan) {
  ++plays_;
  return player_.play(build(plan).step);
}

PlainPlan PlanEvaluator::plain(const IndexedPlan& plan) {
  PlainPlan result = choices_of(plan);
  if (!request_.paper()) result.gather_bytes = build(plan).step.gather_bytes;
  return result;
}

}  // namespace osdp::search
