// The step bound against brute force: no plan's simulated step is below its bound, and what a phase holds
// whatever the timing is never above the plan's largest peak.
#include "search/problem/step_bound.hpp"

#include <algorithm>
#include <cstdlib>

#include "check.hpp"
#include "random_manner.hpp"
#include "random_model.hpp"
#include "search/bounds/pricing.hpp"
#include "search/planner/planner.hpp"

using namespace osdp::search;

namespace {

Manner random_steps(Random& dice, const Model& model) {
  Manner m = manner(model);
  m.small_unit_bytes = draw(dice, 0, 200);
  m.stolen_permille = dice() % 3 == 0 ? 0 : draw(dice, 0, 1200);
  m.prefetch = draw(dice, 0, 2);
  m.lanes.separate_reductions = dice() % 4 == 0;
  m.lanes.enqueue = m.lanes.separate_reductions || dice() % 4 == 0;
  if (dice() % 4 == 0) m.delay = {1e-9, 1e-11};
  const int n = static_cast<int>(model.operators.size());
  for (int i = 0; i < n; ++i) {
    Place& place = m.places[i];
    place.mixed = dice() % 12 == 0;
    place.dtype = dice() % 8 == 0 ? 1 : 0;
    if (model.operators[i].split_tensor >= 0) continue;
    if (dice() % 6 == 0) place.repeats = draw(dice, 2, 3);
    if (dice() % 8 == 0) {  // tied
      place.modules = 2;
      const auto last = static_cast<int>(draw(dice, i, n - 1));
      place.calls.push_back({last, last});
      if (last == i) place.calls.pop_back(), place.modules = 1;
    } else if (dice() % 8 == 0) {  // of a module around others
      place.calls = {{i, static_cast<int>(draw(dice, i, n - 1))}};
    } else if (dice() % 10 == 0) {
      place.traced = false, place.gathered_at = 1000;
    }
  }
  return m;
}

Request random_machine(Random& dice) {
  Request request = random_request(dice);
  if (dice() % 3 == 0) {
    request.device.hosts = 2, request.device.ranks = 4;
    request.device.between_hosts = {1e-9 * static_cast<double>(draw(dice, 0, 60)),
                                    1e-10 * static_cast<double>(draw(dice, 1, 60))};
    request.space.modes.push_back(Mode::HybridShard);
  }
  if (dice() % 2 == 0) request.device.protocols = random_protocols(dice);
  return request;
}

// The memory that the step's units may take while they are gathered ahead, as RuntimeRules have it.
int64_t budget_of(const Step& step) {
  if (step.prefetch == 0) return 0;
  int64_t largest = 0;
  for (const StepUnit& u : step.units) largest = std::max(largest, u.full_bytes);
  const int64_t most = (1 + step.prefetch) * largest;
  return step.gather_bytes > 0 ? std::min(most, step.gather_bytes) : most;
}

struct Worst {
  int64_t plans = 0, tight = 0;  // tight: the bound is above 99% of the step
};

void check_problem(Random& dice, Worst& worst) {
  Model model = random_model(dice, 4);
  for (Operator& op : model.operators)
    if (dice() % 3 == 0) op.compute_s_per_sample = op.recompute_s_per_sample = 0;
  Request request = random_machine(dice);
  const Planner planner(model, request, random_steps(dice, model));
  request = planner.request();
  request.space.shares = StepShares{draw(dice, 0, 1024), draw(dice, 0, 1024)};
  if (dice() % 4 == 0) request.space.shares->forward = request.space.shares->backward = 1024;
  if (dice() % 4 == 0) request.space.shares->forward = request.space.shares->backward = 0;
  request.space.certain_memory = true, request.buffers = 0;
  const int64_t unit = draw(dice, 1, 400);
  request.space.gather = {draw(dice, 0, 1) * draw(dice, 0, unit), dice() % 4 == 0 ? kLargestSum : unit};
  const Kinds kinds = find_kinds(planner.model(), request);
  if (count_plans(planner.model(), kinds, 2001) > 2000) return;
  const Batch batch{draw(dice, 1, 3), draw(dice, 1, 3)};
  every_plan(planner.model(), kinds, [&](const Decision& decision) {
    PlainPlan plan{batch, {}, decision.ways};
    const auto where = find_places(planner.model(), kinds);
    for (size_t i = 0; i < decision.choices.size(); ++i) {
      PlainPlan::Choice& choice = plan.choices.emplace_back();
      if (const Candidate* c = choice_of(where[i], decision, i))
        choice = {c->mode, c->granularity, c->sharded_slices, c->split};
    }
    if (dice() % 3 != 0) plan.gather_bytes = draw(dice, 1, 300);
    const Step step = planner.player().step(plan, planner.units(plan));
    const GatherRange& range = request.space.gather;
    if (const int64_t budget = budget_of(step); budget < range.least || budget > range.most) return;
    const int64_t played = planner.player().play(step).step_ps, bound = step_ps(kinds, decision, batch);
    CHECK(bound <= played);
    worst.plans += 1, worst.tight += bound * 100 >= played * 99;
    const auto phases = phase_bytes(planner.model(), request, kinds, decision, batch);
    CHECK(*std::max_element(phases.begin(), phases.end()) <= planner.player().largest_peak(step));
  });
}

}  // namespace

// Another seed than the suite's may be given: `for s in $(seq 200); do ./test_step_bound $s; done`.
int main(int argc, char** argv) {
  Random dice(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 5);
  Worst worst;
  for (int n = 0; n < 6000 && failures == 0; ++n) check_problem(dice, worst);
  CHECK(worst.tight > worst.plans / 50);
  std::printf("%lld plans, %lld within 1%% of their bound\n", static_cast<long long>(worst.plans),
              static_cast<long long>(worst.tight));
  return report("step bound");
}
