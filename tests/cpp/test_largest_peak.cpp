// The largest peak of any timing: no timing of the same step holds more, and one holds as much.
#include "search/simulate/largest_peak.hpp"

#include <algorithm>

#include "any_timing.hpp"
#include "check.hpp"
#include "random_manner.hpp"
#include "random_model.hpp"
#include "search/heuristics/neighbours.hpp"
#include "search/simulate/step_of_plan.hpp"

using namespace osdp::search;

namespace {

// Three sharded operators of 100 bytes; activations 1000, 10 and 10.
Step three_units() {
  Step s;
  for (int i = 0; i < 3; ++i) {
    StepOperator& o = s.operators.emplace_back();
    o.name = "op" + std::to_string(i);
    o.forward_ps = 10, o.backward_ps = 20;
    o.saved_bytes = i == 0 ? 1000 : 10;
    o.full_gradient_bytes = 100, o.resident_bytes = 50;
    StepUnit& u = s.units.emplace_back();
    u.name = o.name;
    u.members = {i};
    u.calls = {{i, i}};
    u.gather = {5, 5}, u.reduce = {7, 7};
    u.full_bytes = u.gradient_bytes = 100, u.kept_gradient_bytes = 50;
  }
  return s;
}

void three_units_by_hand() {
  Step s = three_units();
  // Shards 150; backward of op 0: its activations, unit and gradient (200), op 2's shard of the gradient
  // (50), and op 1's gradients on their way (150).
  CHECK_EQ(largest_peak(s), 150 + 1000 + 200 + 50 + 150);
  s.units[2].copied_bytes = 30;  // for a moment, when less is held
  CHECK_EQ(largest_peak(s), 150 + 1000 + 200 + 50 + 150);
  s.units[2].copied_bytes =
      130;  // beside op 2's gradients, op 1's unit and gradient, op 2's activations gone
  CHECK_EQ(largest_peak(s), 150 + 1010 + 100 + 100 + 100 + 50 + 130);
  s = three_units();
  s.lanes.separate_reductions = true;  // op 0's unit is there while op 2's gradients leave
  CHECK_EQ(largest_peak(s), 150 + 1010 + 200 + 100 + 100 + 50);
}

// Means of 25 bytes are cast to 50: the result takes the gradients' memory, and what is larger is beside the
// mean for a moment.
void means_that_are_cast_by_hand() {
  Step s = three_units();
  for (StepUnit& u : s.units) u.mean_bytes = 25, u.cast_bytes = 50;
  CHECK_EQ(largest_peak(s), 150 + 1000 + 200 + 50 + 125);
  CHECK(play(s).peak_bytes <= largest_peak(s));
  s.units[1].kept_gradient_bytes = s.units[1].cast_bytes = 180;
  CHECK_EQ(largest_peak(s), 150 + 1000 + 200 + 50 + 125 + 80);
  CHECK(play(s).peak_bytes <= largest_peak(s));
  s = three_units();
  for (StepUnit& u : s.units) u.mean_bytes = 25, u.cast_bytes = 50;
  s.accumulation = 2;  // op 2's mean is added to its gradient, one of three, while op 1's backward runs
  CHECK_EQ(largest_peak(s), 150 + 1010 + 200 + 150 + 125);
}

// Rows that are averaged between hosts and added to the gradient: those of two units wait, and the third's
// reduction begins when the first average is over.
void rows_that_wait_for_other_hosts_by_hand() {
  Step s = three_units();
  for (StepUnit& u : s.units) u.average = {1000, 1000};
  const int64_t first = largest_peak(s);
  CHECK_EQ(play(s).peak_bytes, first);  // they become the gradient
  s.accumulation = 2;
  // Op 0's backward: this rank's gradients, op 1's full one on its way, and rows of both others.
  CHECK_EQ(largest_peak(s), 150 + 1000 + 200 + 150 + 100 + 50 + 50);
  CHECK(play(s).peak_bytes <= largest_peak(s));
}

// Op 0's module may be called last, too: its unit is there from the begin of backward on, and the gradients
// of op 1 leave while its backward runs, since it gathers nothing that would wait for them.
void called_again_by_hand() {
  Step s = three_units();
  s.prefetch = 0;
  const int64_t last_gather = 150 + 1000 + 200 + 50 + 50;
  CHECK_EQ(largest_peak(s), last_gather);
  s.operators[0].work_bytes = 10'000;
  CHECK_EQ(largest_peak(s), last_gather + 10'000);
  s.units[0].repeats = 2;
  CHECK_EQ(largest_peak(s), last_gather + 10'000 + 100);
  s.operators[0].work_bytes = 0, s.operators[2].work_bytes = 10'000;
  CHECK_EQ(largest_peak(s), 150 + 1020 + 200 + 100 + 10'000);
}

// Beside op 2's backward, whose work is the peak, one unit of the block before it is gathered ahead: op 1's
// if backward requests it before the block is recomputed, else op 0's.
void recomputed_before_or_after_the_request() {
  Step s = three_units();
  s.blocks = {{.hold = true, .input_bytes = 5, .bare_end = true}};
  for (int i : {0, 1}) s.operators[i].block = 0, s.operators[i].recompute_ps = 10;
  s.operators[2].work_bytes = 10'000;
  s.units[0].full_bytes = 150, s.units[2].full_bytes = 200;
  const int64_t held = 150 + 5 + 10 + 200 + 100 + 10'000;
  CHECK_EQ(largest_peak(s), held + 150);
  s.blocks[0].bare_end = false;
  CHECK_EQ(largest_peak(s), held + 100);
  std::swap(s.units[0].full_bytes, s.units[1].full_bytes);
  CHECK_EQ(largest_peak(s), held + 150);
}

// Two replicated operators, each with gradients of 40 bytes in the compute dtype, sent from a copy of 30, and
// means of 80.
Step two_mixed_buckets() {
  Step s;
  for (int i = 0; i < 2; ++i) {
    StepOperator& o = s.operators.emplace_back();
    o.name = "op" + std::to_string(i);
    o.forward_ps = 10, o.backward_ps = 20;
    o.cast_gradient_bytes = 40, o.resident_bytes = 100;
    s.buckets.push_back({.name = o.name,
                         .members = {i},
                         .reduce = {7, 7},
                         .buffer_bytes = 30,
                         .cast_bytes = 40,
                         .mean_bytes = 80});
  }
  return s;
}

void mixed_buckets_by_hand() {
  Step s = two_mixed_buckets();
  // Op 1's mean, and of op 0, whose bucket waits for op 1's, the copy and the mean; the gradients are gone.
  CHECK_EQ(largest_peak(s), 200 + 80 + 30 + 80);
  CHECK_EQ(play(s).peak_bytes, 200 + 80 + 30 + 80);
  s.buckets[0].mean_bytes = 20;  // the copy beside the gradients that it is made of
  CHECK_EQ(largest_peak(s), 200 + 80 + 40 + 30);
  s = two_mixed_buckets();
  s.operators[0].work_bytes = 1000;  // op 1's bucket may be anywhere while op 0's backward runs
  CHECK_EQ(largest_peak(s), 200 + 1000 + 40 + 80 + 30);
  s = two_mixed_buckets();
  s.accumulation = 2;  // both means from the first micro-batch; op 0's gradients while op 1's are copied
  CHECK_EQ(largest_peak(s), 200 + 160 + 40 + 40 + 30);
  for (StepBucket& b : s.buckets) b.reduce = {};  // nothing to wait for
  CHECK_EQ(largest_peak(s), 200 + 160 + 40);
}

// Replicated slices under mixed precision: the gradient of a further micro-batch is as wide as the sum, and
// is there until a copy of half of it has been made.
void further_gradients_of_slices_by_hand() {
  Step s;
  StepOperator& o = s.operators.emplace_back();
  o.name = "op", o.forward_ps = 10, o.backward_ps = 20;
  o.whole_gradient_bytes = 80, o.resident_bytes = 100;
  s.buckets.push_back(
      {.name = "op", .members = {0}, .reduce = {7, 7}, .buffer_bytes = 40, .further_bytes = 80});
  CHECK_EQ(largest_peak(s), 100 + 80 + 40);
  s.accumulation = 2;
  CHECK_EQ(largest_peak(s), 100 + 80 + 80 + 40);
  CHECK_EQ(play(s).peak_bytes, 100 + 80 + 80 + 40);
}

Request request(Random& dice) {
  Request r = random_request(dice);
  r.device.ranks = 2 * draw(dice, 1, 2);
  r.device.hosts = draw(dice, 1, 2);
  r.device.between_hosts = r.device.all_reduce;
  if (r.device.hosts > 1) allow_hosts(dice, r);
  if (dice() % 2 == 0) allow_offload(dice, r);
  if (dice() % 2 == 0) r.batches = {{1, 3}, {2, 1}};
  r.limit_bytes = int64_t{1} << 40;
  return r;
}

Step step_of(const PlanPlayer& player, const Request& asked, const Manner& manner, const PlainPlan& plan,
             const std::vector<Members>& units) {
  std::vector<PlannedUnit> planned;
  for (const Members& members : units) {
    PlannedUnit& unit = planned.emplace_back();
    unit.name = player.model().operators[members.front()].name;
    unit.operators = members;
    for (int i : members) unit.calls.push_back({i, i});
  }
  return osdp::search::step_of(player.model(), asked, plan, planned, manner.delay, manner.lanes);
}

// Other times of everything, from nothing to a thousand times as long.
void retime(Random& dice, Step& s) {
  const auto other = [&](LaneTime& t) {
    if (t.alone_ps == 0) return;
    t.alone_ps = t.beside_ps = draw(dice, 1, 10) * (dice() % 3 == 0 ? 1000 : 1);
    t.transfer_ps = 0;
  };
  const int64_t computes = dice() % 2 == 0 ? 1 : 100;
  for (StepOperator& o : s.operators) {
    o.forward_ps = computes * draw(dice, 0, 10), o.backward_ps = computes * draw(dice, 0, 10);
    o.recompute_ps = o.forward_ps;
  }
  for (StepUnit& u : s.units) other(u.gather), other(u.reduce), other(u.average);
  for (StepBucket& b : s.buckets) other(b.reduce);
}

// The most that is held in any order of lanes and computation, and of what a step does not say.
int64_t tried(const Step& step) {
  int64_t most = 0;
  for (const Recomputation when : {Recomputation::AfterUse, Recomputation::BeforeUse})
    for (const bool early : {false, true})
      most = std::max(most, AnyTiming(step, make_program(step, when), early).largest_peak());
  return most;
}

void no_timing_holds_more_and_one_as_much() {
  Random dice(1);
  for (int n = 0; n < 400; ++n) {
    const Model model = random_model(dice, 10);
    const Request asked = request(dice);
    Manner how = manner(model);
    const int64_t prefetch = draw(dice, 0, 2);
    how.lanes = {dice() % 4 == 0, dice() % 4 == 0};
    const TimedModel timed(model);
    const PlanPlayer player(timed, asked, how);
    PlanEvaluator evaluator(asked, player, kLargestSum);
    Neighbours neighbours(evaluator);
    IndexedPlan plan{asked.batches.empty() ? Batch{2, 1} : asked.batches.front(), {}};
    plan.decision.ways.assign(model.blocks.size(), asked.recompute.front());
    for (size_t i = 0; i < model.operators.size(); ++i) {
      const int op = static_cast<int>(i);
      const auto& list = evaluator.candidates(op, evaluator.way_of(op, plan.decision));
      plan.decision.choices.push_back(list.empty() ? -1 : static_cast<int>(dice() % list.size()));
    }
    for (int changes = 0; changes < 3; ++changes) neighbours.change(plan, false);
    PlainPlan plain = evaluator.plain(plan);
    plain.prefetch = prefetch;
    if (dice() % 2 == 0) plain.gather_bytes = draw(dice, 1, 400);
    const auto units = player.units(plain, largest_transient(evaluator.classes(), plan.decision));
    Step step = step_of(player, asked, how, plain, units);
    if (plain.batch.accumulation <= 2)
      CHECK_EQ(largest_peak(step), player.largest_peak(player.step(plain, units)));
    for (StepUnit& u : step.units)
      if (!u.slice && dice() % 8 == 0) u.repeats = 2;
    const int64_t most = largest_peak(step);
    CHECK_EQ(most, tried(step));
    for (int timing = 0; timing < 20; ++timing) {
      retime(dice, step);
      CHECK(play(step, 0, Record::Totals).peak_bytes <= most);
    }
  }
}

}  // namespace

int main() {
  three_units_by_hand();
  means_that_are_cast_by_hand();
  rows_that_wait_for_other_hosts_by_hand();
  called_again_by_hand();
  recomputed_before_or_after_the_request();
  mixed_buckets_by_hand();
  further_gradients_of_slices_by_hand();
  no_timing_holds_more_and_one_as_much();
  return report("test_largest_peak");
}
