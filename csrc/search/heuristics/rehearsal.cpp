#include "search/heuristics/rehearsal.hpp"

#include <algorithm>

#include "search/bounds/pricing.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {

Rehearsal::Rehearsal(const Request& request, const PlanPlayer& player, int64_t most_bytes)
    : request_(request),
      player_(player),
      most_bytes_(most_bytes),
      kinds_(find_kinds(player.model(), request)),
      slots_(player.model().operators.size()) {
  for (const Kind& kind : kinds_.kinds) {
    for (const auto& instance : kind.instances) {
      for (size_t p = 0; p < instance.size(); ++p) slots_[instance[p]] = &kind.slots[p];
    }
  }
}

Recompute Rehearsal::way_of(int op, const Decision& decision) const {
  const int block = model().operators[op].block;
  return block < 0 ? Recompute::None : decision.ways[block];
}

const std::vector<Candidate>& Rehearsal::candidates(int op, Recompute way) const {
  return slots_[op]->candidates[static_cast<int>(way)];
}

void Rehearsal::check(const Candidacy& plan) const {
  const Decision& d = plan.decision;
  bool good = d.choices.size() == model().operators.size() && d.ways.size() == model().blocks.size() &&
              plan.batch.size >= 1 && plan.batch.accumulation >= 1;
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

int64_t Rehearsal::peak_bytes(const Candidacy& plan) const {
  const auto phases = phase_bytes(model(), request_, kinds_, plan.decision, plan.batch);
  return *std::max_element(phases.begin(), phases.end()) +
         request_.reserve_bytes(largest_transient(kinds_, plan.decision));
}

int64_t Rehearsal::objective_ps(const Candidacy& plan) const {
  return osdp::search::step_ps(kinds_, plan.decision, plan.batch);
}

PlainPlan Rehearsal::choices_of(const Candidacy& plan) const {
  PlainPlan result{plan.batch, {}, plan.decision.ways};
  for (size_t i = 0; i < plan.decision.choices.size(); ++i) {
    PlainPlan::Choice& choice = result.choices.emplace_back();
    if (plan.decision.choices[i] < 0) continue;
    const Recompute way = way_of(static_cast<int>(i), plan.decision);
    const Candidate& c = candidates(static_cast<int>(i), way)[plan.decision.choices[i]];
    choice = {c.mode, c.granularity, c.sharded_slices, c.split};
  }
  return result;
}

const Rehearsal::Built& Rehearsal::build(const Candidacy& plan) {
  if (built_ && built_->plan == plan) return *built_;
  const PlainPlan choices = choices_of(plan);
  Step step = player_.step(choices, player_.units(choices, largest_transient(kinds_, plan.decision)));
  const int64_t peak = player_.fit(step, most_bytes_);
  built_ = Built{plan, std::move(step), peak};
  return *built_;
}

int64_t Rehearsal::largest_peak_bytes(const Candidacy& plan) {
  return request_.paper() ? peak_bytes(plan) : build(plan).largest_peak_bytes;
}

PlayedStep Rehearsal::play(const Candidacy& plan) {
  ++plays_;
  return player_.play(build(plan).step);
}

PlainPlan Rehearsal::plain(const Candidacy& plan) {
  PlainPlan result = choices_of(plan);
  if (!request_.paper()) result.gather_bytes = build(plan).step.gather_bytes;
  return result;
}

}  // namespace osdp::search
