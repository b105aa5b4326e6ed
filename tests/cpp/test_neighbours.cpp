// Changes of plans: they are plans of the same problem, in bounds, the same every time; those that ask for
// less memory need less of it, or another largest transient.
#include "search/heuristics/neighbours.hpp"

#include "check.hpp"
#include "random_model.hpp"

using namespace osdp::search;

namespace {

Request request(Random& dice) {
  Request r;
  r.device.ranks = 4, r.device.hosts = draw(dice, 1, 2);
  r.device.all_gather = r.device.reduce_scatter = r.device.all_reduce = {1e-9, 1e-10};
  r.device.between_hosts = r.device.all_reduce;
  r.space.modes = {Mode::NoShard, Mode::ShardGradOp, Mode::FullShard, Mode::HybridShard};
  r.space.granularities = {2, 4};
  r.recompute = {Recompute::None};
  if (draw(dice, 0, 3) > 0) r.recompute.push_back(Recompute::Hold);
  if (draw(dice, 0, 3) > 0) r.recompute.push_back(Recompute::Regather);
  if (draw(dice, 0, 1) > 0) r.batches = {{1, 4}, {2, 2}, {4, 1}};
  r.limit_bytes = int64_t{1} << 40;
  return r;
}

IndexedPlan first_plan(const PlanEvaluator& r) {
  const auto& given = r.request().batches;
  IndexedPlan plan{given.empty() ? Batch{3, 1} : given.front(), {}};
  plan.decision.ways.assign(r.model().blocks.size(), Recompute::None);
  for (int i = 0; i < static_cast<int>(r.model().operators.size()); ++i)
    plan.decision.choices.push_back(r.candidates(i, Recompute::None).empty() ? -1 : 0);
  return plan;
}

bool equal(const IndexedPlan& a, const IndexedPlan& b) {
  return a.batch.size == b.batch.size && a.batch.accumulation == b.batch.accumulation &&
         a.decision.choices == b.decision.choices && a.decision.ways == b.decision.ways;
}

void changes_are_plans_of_the_problem_and_the_same_again() {
  Random dice(3);
  int changed = 0, shrunk = 0, kept = 0;
  for (int n = 0; n < 200; ++n) {
    const Model model = random_model(dice, 12);
    const Request asked = request(dice);
    Manner manner;
    manner.places.resize(model.operators.size());
    const TimedModel timed(model);
    const PlanPlayer player(timed, asked, manner);
    const PlanEvaluator r(asked, player, 0);
    Neighbours one(r), other(r);
    IndexedPlan plan = first_plan(r), again = plan;
    for (int step = 0; step < 60; ++step) {
      const IndexedPlan before = plan;
      const bool coarse = step % 3 == 0;
      one.change(plan, coarse), other.change(again, coarse);
      CHECK(equal(plan, again));
      r.check(plan);
      const auto& given = asked.batches;
      CHECK(given.empty() ? plan.batch.accumulation == 1
                          : std::any_of(given.begin(), given.end(), [&](const Batch& b) {
                              return b.size == plan.batch.size && b.accumulation == plan.batch.accumulation;
                            }));
      changed += !equal(plan, before);
      IndexedPlan less = plan;
      const bool smaller = one.shrink(less);
      CHECK_EQ(smaller, other.shrink(again));
      r.check(less);
      CHECK_EQ(smaller, !equal(less, plan));
      shrunk += smaller;
      IndexedPlan more = less;
      const bool keeps = one.keep_block(more);
      CHECK_EQ(keeps, other.keep_block(again));
      r.check(more);
      CHECK_EQ(keeps, more.decision.ways != less.decision.ways);
      kept += keeps;
      again = plan = more;
    }
    for (const auto& change : one.in_order()) {
      IndexedPlan next = plan;
      const bool changes = change(next);
      CHECK_EQ(changes, !equal(next, plan));
      r.check(next);
    }
  }
  CHECK(changed > 4000);
  CHECK(shrunk > 3000);
  CHECK(kept > 1000);
}

}  // namespace

int main() {
  changes_are_plans_of_the_problem_and_the_same_again();
  return report("test_neighbours");
}
