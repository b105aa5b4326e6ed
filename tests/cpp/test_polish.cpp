// Local search on the played step: what it returns fits, is no slower than any seed, comes of a bounded
// number of plays, and is the same again; where the better plan is one change away, it is found.
#include "search/heuristics/polish.hpp"

#include "check.hpp"
#include "random_manner.hpp"
#include "random_model.hpp"

using namespace osdp::search;

namespace {

Request request(int64_t ranks, int64_t limit) {
  Request r;
  r.device.ranks = ranks;
  r.device.all_gather = r.device.reduce_scatter = r.device.all_reduce = {1e-9, 1e-10};
  r.space.modes = {Mode::NoShard, Mode::ShardGradOp, Mode::FullShard};
  r.space.granularities = {2};
  r.space.bucket_bytes = 100;
  r.recompute = {Recompute::None, Recompute::Hold, Recompute::Regather};
  r.limit_bytes = limit;
  return r;
}

// All blocks one way, the same choice everywhere where it is there.
IndexedPlan uniform(const PlanEvaluator& r, Batch batch, Recompute way, size_t choice) {
  IndexedPlan plan{batch, {}};
  plan.decision.ways.assign(r.model().blocks.size(), way);
  for (int i = 0; i < static_cast<int>(r.model().operators.size()); ++i) {
    const size_t n = r.candidates(i, r.way_of(i, plan.decision)).size();
    plan.decision.choices.push_back(static_cast<int>(std::min(choice, n - 1)));
    if (n == 0) plan.decision.choices.back() = -1;
  }
  return plan;
}

Spare by_sum(const PlanEvaluator& r) {
  return [&r](const IndexedPlan& s) { return r.request().limit_bytes - r.peak_bytes(s); };
}

void a_polished_plan_fits_and_is_no_slower() {
  Random dice(7);
  int faster = 0;
  for (int n = 0; n < 300; ++n) {
    const Model model = random_model(dice, 12);
    Request wide = request(4, int64_t{1} << 40);
    std::vector<IndexedPlan> seeds;
    {
      const TimedModel timed(model);
      const PlanPlayer player(timed, wide, manner(model));
      PlanEvaluator all(wide, player, 0);
      const Batch batch{draw(dice, 1, 4), draw(dice, 1, 3)};
      for (const Recompute way : wide.recompute)
        for (size_t choice = 0; choice < 4; ++choice) seeds.push_back(uniform(all, batch, way, choice));
      int64_t least = kLargestSum, most = 0;
      for (const IndexedPlan& s : seeds)
        least = std::min(least, all.peak_bytes(s)), most = std::max(most, all.peak_bytes(s));
      wide.limit_bytes = draw(dice, least, most);
    }
    const TimedModel timed(model);
    const PlanPlayer player(timed, wide, manner(model));
    PlanEvaluator r(wide, player, wide.limit_bytes);
    // The limit is of the sum, or of the plan's own peak.
    const bool own_peak = draw(dice, 0, 1) == 1;
    const Spare spare = [&](const IndexedPlan& s) {
      const int64_t sum = r.peak_bytes(s);
      return wide.limit_bytes - (own_peak ? r.largest_peak_bytes(s) : sum);
    };
    int128 best = 0, samples = 0;  // seeds have one batch; it may change
    for (const IndexedPlan& s : seeds) {
      samples = s.batch.samples();
      if (spare(s) >= 0 && (best == 0 || r.step_ps(s) < best)) best = r.step_ps(s);
    }
    if (best == 0) continue;  // peaks exceed the sum
    const int64_t before = r.plays(), plays = draw(dice, 12, 60);
    const Polished p = polish(r, seeds, plays, spare);
    CHECK(r.plays() - before <= kMostTurns * plays);
    CHECK(p.played_ps * samples <= best * p.plan.batch.samples());
    faster += p.played_ps * samples < best * p.plan.batch.samples();
    const IndexedPlan& plan = p.plan;
    r.check(plan);
    CHECK_EQ(r.step_ps(plan), p.played_ps);
    CHECK(spare(plan) >= 0);
    const int64_t played = r.plays();
    const Polished at_once = polish(r, seeds, plays, spare, 0, [] { return true; });
    CHECK(r.plays() - played <= static_cast<int64_t>(seeds.size()));
    CHECK(spare(at_once.plan) >= 0);
    const Polished again = polish(r, seeds, plays, spare);
    CHECK_EQ(again.played_ps, p.played_ps);
    CHECK(again.plan == p.plan);
  }
  CHECK(faster > 100);
}

// Memory is no limit: nothing need be computed twice, or gathered.
void recomputation_and_gathers_that_nothing_asks_for_go() {
  Model model;
  for (int i = 0; i < 8; ++i) {
    Operator op;
    op.name = "op" + std::to_string(i);
    op.tensors = {{16, 64}};
    op.block = i / 2;
    op.saved_bytes_per_sample = 50;
    op.compute_s_per_sample = 3e-6, op.recompute_s_per_sample = 1e-6;
    model.operators.push_back(op);
  }
  for (int b = 0; b < 4; ++b) model.blocks.push_back({"block" + std::to_string(b), 10});
  Request ample = request(4, int64_t{1} << 40);
  ample.batches = {{2, 1}};
  const TimedModel timed(model);
  const PlanPlayer player(timed, ample, manner(model));
  PlanEvaluator r(ample, player, ample.limit_bytes);
  const Polished p = polish(r, {uniform(r, {2, 1}, Recompute::Regather, 2)}, 100, by_sum(r));
  for (const Recompute way : p.plan.decision.ways) CHECK(way == Recompute::None);
  // Nothing is faster than computing alone, and what cannot be hidden: the last reduction.
  CHECK(p.played_ps < 8 * 2 * 3000000 + 4 * 1000000);
}

void what_is_no_plan_is_refused() {
  Random dice(1);
  const Model model = random_model(dice, 6);
  const Request none = request(4, 0);
  const TimedModel timed(model);
  const PlanPlayer player(timed, none, manner(model));
  PlanEvaluator r(none, player, 0);
  const IndexedPlan seed = uniform(r, {1, 1}, Recompute::None, 0);
  CHECK_THROWS(polish(r, {seed}, 10, by_sum(r)), InvalidProblem, "keeps the limit");
  CHECK_THROWS(polish(r, {}, 10, by_sum(r)), InvalidProblem, "keeps the limit");
  IndexedPlan wrong = seed;
  wrong.decision.choices.pop_back();
  CHECK_THROWS(polish(r, {wrong}, 10, by_sum(r)), InvalidProblem, "none of this problem");
}

}  // namespace

int main() {
  a_polished_plan_fits_and_is_no_slower();
  recomputation_and_gathers_that_nothing_asks_for_go();
  what_is_no_plan_is_refused();
  return report("test_polish");
}
