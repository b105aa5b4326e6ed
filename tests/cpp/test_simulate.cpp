// A step played event by event: small ones worked out by hand, and what must hold of any.
#include "search/simulate/simulate.hpp"

#include <algorithm>
#include <array>
#include <random>

#include "check.hpp"
#include "search/problem/problem.hpp"

using namespace osdp::search;

namespace {

// A chain of operators of `forward` and `backward` each, `saved` bytes kept.
Step chain(int operators, int64_t forward, int64_t backward, int64_t saved = 0) {
  Step s;
  for (int i = 0; i < operators; ++i) {
    s.operators.push_back({"op" + std::to_string(i), forward, backward, 0, saved, 0, 0, 1, -1, 0, forward});
  }
  return s;
}

// Operator i sharded by itself: parameters of `bytes`, of which this rank holds half.
void shard(Step& s, int i, int64_t gather, int64_t reduce, int64_t bytes) {
  StepUnit u;
  u.name = "unit " + std::to_string(i);
  u.members = {i};
  u.calls = {{i, i}};
  u.gather = {gather, gather}, u.reduce = {reduce, reduce};
  u.full_bytes = bytes;
  if (reduce > 0) {
    u.gradient_bytes = s.operators[i].full_gradient_bytes = bytes;
    u.kept_gradient_bytes = bytes / 2;
  }
  s.operators[i].resident_bytes = bytes / 2;
  s.units.push_back(u);
}

Step two_units() {
  Step s = chain(2, 10, 20, 1000);
  shard(s, 0, 5, 7, 100);
  shard(s, 1, 5, 7, 100);
  s.optimizer_ps = 3;
  return s;
}

void two_units_by_hand() {
  // gather 0: 0-5, gather 1: 5-10; forward 0: 5-15, 1: 15-25, unit 1 stays; backward 1: 25-45 with gather 0:
  // 25-30; reduction 1: 45-52; backward 0: 45-65; reduction 0: 65-72; optimizer: 72-75.
  const PlayedStep p = play(two_units());
  CHECK_EQ(p.step_ps, 75);
  CHECK_EQ(p.both_ps, 5 + 5 + 7);
  CHECK_EQ(p.only_communicating_ps, 5 + 7);
  CHECK_EQ(p.only_computing_ps, 60 - 17);
  CHECK_EQ(p.optimizer_ps, 3);
  const std::vector<std::tuple<StepEvent::Kind, int, int64_t, int64_t>> expected{
      {StepEvent::Kind::Gather, 0, 0, 5},   {StepEvent::Kind::Gather, 1, 5, 10},
      {StepEvent::Kind::Compute, 0, 5, 15}, {StepEvent::Kind::Compute, 1, 15, 25},
      {StepEvent::Kind::Gather, 0, 25, 30}, {StepEvent::Kind::Compute, 1, 25, 45},
      {StepEvent::Kind::Reduce, 1, 45, 52}, {StepEvent::Kind::Compute, 0, 45, 65},
      {StepEvent::Kind::Reduce, 0, 65, 72}, {StepEvent::Kind::Compute, -1, 72, 75}};
  CHECK_EQ(p.events.size(), expected.size());
  for (const auto& event : expected) {
    const auto match = [&](const StepEvent& e) {
      return std::tie(e.kind, e.what, e.begin_ps, e.end_ps) == event;
    };
    CHECK_EQ(std::count_if(p.events.begin(), p.events.end(), match), 1);
  }
  // Shards of both (100), activations of both (2000), and in backward 1 its unit, the arriving one and the
  // gradient that is being made.
  CHECK_EQ(p.peak_bytes, 100 + 2000 + 300);
  CHECK_EQ(p.memory.back().bytes, 100 + 100);  // shards and their gradients
}

void contention_by_hand() {
  // Beside computation everything takes twice as long, and 0.4 of its time alone is lost to computation,
  // which gets (2 - 0.4) / 2 = 0.8 of the time. Gather 1 from 5 to 15, in which 8 of the 10 of forward 0 are
  // done: it ends at 17, forward 1 at 27. Gather 0 then 27-37, in which 8 of backward 1's 20 are done: it
  // ends at 49. Reduction 1 takes 14, to 63, 11.2 of backward 0's 20 are done; 8.8 are left, rounded up: 72.
  // Reduction 0: 79.
  Step s = two_units();
  s.optimizer_ps = 0;
  for (StepUnit& u : s.units) {
    u.gather.beside_ps = 10, u.reduce.beside_ps = 14;
    u.gather.transfer_ps = 5, u.reduce.transfer_ps = 7;
  }
  const PlayedStep p = play(s, 400);
  CHECK_EQ(p.step_ps, 79);
  CHECK_EQ(p.both_ps, 10 + 10 + 14);
  // All of its time lost: one after the other, but for gather 0, which waits for nothing of that.
  for (StepUnit& u : s.units) u.gather.beside_ps = 5, u.reduce.beside_ps = 7;
  CHECK_EQ(play(s, 1000).step_ps, 60 + 3 * 5 + 2 * 7);
  // All of it latency: nothing is lost.
  for (StepUnit& u : s.units) u.gather.transfer_ps = u.reduce.transfer_ps = 0;
  CHECK_EQ(play(s, 1000).step_ps, play(two_units()).step_ps - 3);
  s.units[0].gather.beside_ps = 4;
  CHECK_THROWS(play(s), InvalidProblem, "shorter");
  CHECK_THROWS(play(two_units(), -1), InvalidProblem, "steals");
}

void kept_units_are_gathered_once() {
  Step s = two_units();
  s.units[0].keeps = s.units[1].keeps = true;
  // As above, without the second gather of unit 0.
  const PlayedStep p = play(s);
  CHECK_EQ(p.both_ps, 5 + 7);
  CHECK_EQ(p.step_ps, 75);
  CHECK_EQ(p.peak_bytes, 100 + 2000 + 300);
}

void buckets_wait_for_all_members() {
  Step s = chain(3, 10, 20);
  s.buckets.push_back({"both", {0, 2}, {9, 9}, 50});
  s.buckets.push_back({"middle", {1}, {100, 100}, 50});
  // Backward 30-90; "middle" from 70 to 170, "both" is there at 90 but comes after it: to 179.
  const PlayedStep p = play(s);
  CHECK_EQ(p.step_ps, 179);
  CHECK_EQ(p.both_ps, 20);
  CHECK_EQ(p.peak_bytes, 50);
}

void slices_go_one_after_the_other() {
  Step s = chain(1, 40, 80);
  s.operators[0].parts = 4;
  for (int slice = 0; slice < 2; ++slice) {
    StepUnit u;
    u.name = "slice";
    u.members = {0};
    u.slice = true;
    u.gather = {3, 3}, u.reduce = {30, 30};
    u.full_bytes = u.gradient_bytes = 100;
    u.kept_gradient_bytes = 50;
    s.units.push_back(u);
  }
  // Forward: two parts that are not sharded 0-20, gather 20-23, slice 23-33 (the next one gathered
  // meanwhile), 33-43. Backward: gather of the last slice 43-46, its input's gradient 46-56, its own 56-66,
  // reduction 66-96; the first slice, gathered 46-49: 66-76, 76-86, waits to 96, its reduction 96-126; the
  // rest of the operator 96-136.
  const PlayedStep p = play(s);
  CHECK_EQ(p.step_ps, 136);
  // The slice in use is released before its gradient is made: the gradient that leaves and its shard, the one
  // that is made.
  CHECK_EQ(p.peak_bytes, 100 + 50 + 100);
}

void recomputation() {
  Step s = two_units();
  s.blocks.push_back({false, 30});
  s.operators[0].block = s.operators[1].block = 0;
  // Forward 5-25 as before, unit 1 stays. Recomputation: gather 0 from 25 to 30, forward 0 30-40, released;
  // forward 1 40-50; backward 1 50-70, gather 0 again from 40 to 45 (asked for with the use of unit 1);
  // reduction 1 70-77, backward 0 70-90, reduction 0 90-97.
  PlayedStep p = play(s);
  CHECK_EQ(p.step_ps, 97 + 3);
  CHECK_EQ(std::count_if(p.events.begin(), p.events.end(),
                         [](const StepEvent& e) { return e.kind == StepEvent::Kind::Gather; }),
           4);
  s.blocks[0].hold = true;  // not gathered again for its backward
  p = play(s);
  CHECK_EQ(p.step_ps, 97 + 3);
  CHECK_EQ(std::count_if(p.events.begin(), p.events.end(),
                         [](const StepEvent& e) { return e.kind == StepEvent::Kind::Gather; }),
           3);
  CHECK_EQ(p.peak_bytes, 100 + 30 + 2000 + 300);
}

void micro_batches_repeat() {
  Step s = two_units();
  s.accumulation = 3;
  const PlayedStep p = play(s);
  CHECK_EQ(p.step_ps, 3 * 72 + 3);
  CHECK_EQ(p.peak_bytes, 100 + 2000 + 300 + 100);  // and the shards of earlier gradients
}

void prefetch_depth() {
  Step s = chain(3, 10, 0);
  for (int i = 0; i < 3; ++i) shard(s, i, 8, 0, 100);
  s.prefetch = 0;  // every gather is waited for; unit 2 stays for backward, 1 and 0 come again
  CHECK_EQ(play(s).step_ps, 3 * 18 + 2 * 8);
  s.prefetch = 1;
  CHECK_EQ(play(s).step_ps, 8 + 30 + 2 * 8);
  CHECK_EQ(play(s).peak_bytes, 150 + 200);
  s.prefetch = 2;
  CHECK_EQ(play(s).peak_bytes, 150 + 300);
}

// Of smaller units more are gathered ahead, in the memory of 1 + prefetch of the largest.
void small_ones_come_earlier() {
  Step s = chain(4, 10, 0);
  for (int i = 0; i < 4; ++i) shard(s, i, 8, 0, i == 0 ? 100 : 40);
  s.operators[1].forward_ps = 1;
  s.prefetch = 1;  // beside unit 0, of 100 bytes, there is room for two of 40: 2 follows 1 at once, at 16
  CHECK_EQ(play(s).step_ps, 3 * 8 + 2 * 10 + 3 * 8);  // 3 stays for backward
}

// With fewer bytes nothing is gathered beside the large unit, but one small one beside another; the unit in
// use is gathered in any case.
void a_budget_holds_back_what_does_not_fit() {
  Step s = chain(4, 10, 0);
  for (int i = 0; i < 4; ++i) shard(s, i, 8, 0, i == 0 ? 100 : 40);
  s.gather_bytes = 139;
  CHECK_EQ(play(s).step_ps, 18 + 8 + 3 * 10 + 3 * 8);  // 3 stays for backward, which computes nothing
  s.gather_bytes = 1;
  CHECK_EQ(play(s).step_ps, 4 * 18 + 3 * 8);
  s.gather_bytes = 1 << 20;  // no more than without
  Step whole = s;
  whole.gather_bytes = 0;
  CHECK_EQ(play(s).step_ps, play(whole).step_ps);
}

// A forward that keeps all that it gathers has no limit: 1 to 3 follow 0 at once, 2 is there at 24.
void kept_ones_come_at_once() {
  Step s = chain(4, 10, 0);
  for (int i = 0; i < 4; ++i) shard(s, i, 8, 0, 100);
  s.operators[1].forward_ps = 1;
  for (StepUnit& u : s.units) u.keeps = true;
  CHECK_EQ(play(s).step_ps, 3 * 8 + 2 * 10);
  s.units[3].keeps = false;  // as many as the memory of two allows: 2 is asked for by 1, at 18
  CHECK_EQ(play(s).step_ps, 18 + 8 + 2 * 10);
}

// Reductions of three operators, which last longer than the backward of one.
Step long_reductions() {
  Step s = chain(3, 10, 20);
  for (int i = 0; i < 3; ++i) shard(s, i, 5, 40, 100);
  return s;
}

void reductions_of_their_own_lane() {
  // Forward 5-35, backward 2 35-55 with gather 1, reduction 2 55-95. Behind it gather 0, to 100; backward 1
  // 55-75, backward 0 100-120; reductions 1 and 0 100-180.
  CHECK_EQ(play(long_reductions()).step_ps, 180);
  // Gather 0 55-60. Backward 1 55-75; its reduction is submitted when the one before is over, 95-135;
  // backward 0 95-115; reduction 0 135-175.
  Step s = long_reductions();
  s.lanes = {.separate_reductions = true, .enqueue = true};
  const PlayedStep p = play(s);
  CHECK_EQ(p.step_ps, 175);
  CHECK_EQ(p.only_communicating_ps, 5 + 20 + (175 - 115));
  // Both transfer all the time: gather 0 55-65, of reduction 2 5 are done by then: it ends at 100, and the
  // others as much later.
  for (StepUnit& u : s.units) u.gather.transfer_ps = 5, u.reduce.transfer_ps = 40;
  CHECK_EQ(play(s).step_ps, 180);
  // Half the time each: as if alone. And so on links of their own.
  for (StepUnit& u : s.units) u.gather.transfer_ps = 2, u.reduce.transfer_ps = 20;
  CHECK_EQ(play(s).step_ps, 175);
  for (StepUnit& u : s.units) u.gather.transfer_ps = 5, u.reduce.transfer_ps = 40;
  for (StepUnit& u : s.units) u.reduce.link = Link::BetweenHosts;
  CHECK_EQ(play(s).step_ps, 175);
}

void gradients_that_leave_fit_the_reserve() {
  // Four units that backward does not gather, whose reductions take 100 each, and 20 to compute. The memory
  // of two may leave: reductions from 85 on (forward 0-5, 5-45; backward 3 45-65, reduction 65-165), 2 is
  // given at 85, 1 at 165, when the first is over, 0 at 265.
  Step s = chain(4, 10, 20);
  for (int i = 0; i < 4; ++i) shard(s, i, 5, 100, 100);
  for (StepUnit& u : s.units) u.keeps = true;
  const PlayedStep p = play(s);
  int64_t most = 0, computed = 0;
  for (const MemoryPoint& m : p.memory) most = std::max(most, m.bytes);
  for (const StepEvent& e : p.events)
    if (e.kind == StepEvent::Kind::Compute) computed = e.end_ps;
  CHECK_EQ(p.step_ps, 65 + 4 * 100);
  CHECK_EQ(computed, 185);
  CHECK_EQ(most, p.peak_bytes);
}

void averages_between_hosts() {
  // As in two_units_by_hand; the average of unit 1 52-72, of unit 0 72-92.
  Step s = two_units();
  for (StepUnit& u : s.units) {
    u.average = {20, 20, 20, Link::BetweenHosts};
    u.gather.transfer_ps = 5, u.reduce.transfer_ps = 7;
  }
  const PlayedStep p = play(s);
  CHECK_EQ(p.step_ps, 92 + 3);
  CHECK_EQ(p.only_communicating_ps, 5 + (92 - 65));
  // With 0.3 of what is communicated lost to computation: forward 0 5-17 (of 5 ps beside the gather 3 are
  // done), backward 1 27-49, backward 0 49-78 beside reduction 1 49-56 and its average 56-76; reduction 0
  // 78-85, its average 85-105.
  CHECK_EQ(play(s, 300).step_ps, 105 + 3);
}

// What does not fit together is refused.
void nonsense() {
  Step s = two_units();
  s.units[0].members = {7};
  CHECK_THROWS(play(s), InvalidProblem, "unknown operator");
  s = two_units();
  s.units[1].calls = {};
  CHECK_THROWS(play(s), InvalidProblem, "nowhere");
  s = two_units();
  s.operators[0].block = 0;
  CHECK_THROWS(play(s), InvalidProblem, "unknown block");
  s = two_units();
  s.units[0].reduce.transfer_ps = 8;
  CHECK_THROWS(play(s), InvalidProblem, "busy for longer");
  s = two_units();
  s.operators[0].forward_ps = s.operators[1].forward_ps = kLargestSum;
  CHECK_THROWS(play(s), InvalidProblem, "overflows");
}

Step random_step(std::mt19937_64& r) {
  const auto upto = [&](int64_t n) { return static_cast<int64_t>(r() % static_cast<uint64_t>(n + 1)); };
  Step s = chain(2 + static_cast<int>(upto(8)), 0, 0);
  const int n = static_cast<int>(s.operators.size());
  const int first = static_cast<int>(upto(n - 1)), last = first + static_cast<int>(upto(n - 1 - first));
  if (upto(1)) {
    s.blocks.push_back({upto(1) == 1, upto(100)});
    for (int i = first; i <= last; ++i) s.operators[i].block = 0;
  }
  for (int i = 0; i < n; ++i) {
    StepOperator& o = s.operators[i];
    o.forward_ps = upto(1000), o.recompute_ps = upto(1000), o.backward_ps = upto(2000),
    o.saved_bytes = upto(1000);
    o.work_bytes = upto(700);
    const int64_t bytes = 2 * upto(500);
    switch (upto(4)) {
      case 0:
        break;
      case 1:
        o.whole_gradient_bytes = bytes;
        s.buckets.push_back({"bucket", {i}, {1 + upto(2000), 0}, 0});
        s.buckets.back().reduce.beside_ps = s.buckets.back().reduce.alone_ps;
        break;
      case 2:
        o.parts = 3;
        for (int slice = 0; slice < 2; ++slice) {
          shard(s, i, upto(500), 1 + upto(500), bytes);
          s.units.back().slice = true;
          o.full_gradient_bytes = 0;
        }
        break;
      default:
        shard(s, i, upto(1000), upto(3) ? 1 + upto(1000) : 0, bytes);
        s.units.back().keeps = upto(3) == 0;
    }
  }
  s.accumulation = 1 + upto(2);
  s.prefetch = upto(3);
  if (upto(2) == 0) s.gather_bytes = 1 + upto(3000);
  s.optimizer_ps = upto(500);
  return s;
}

// What the resources do by themselves.
std::pair<int64_t, int64_t> totals(const PlayedStep& p) {
  int64_t computing = 0, communicating = 0;
  for (const StepEvent& e : p.events) {
    (e.kind == StepEvent::Kind::Compute ? computing : communicating) += e.end_ps - e.begin_ps;
  }
  return {computing, communicating};
}

void properties() {
  std::mt19937_64 r(5);
  for (int n = 0; n < 3000; ++n) {
    Step s = random_step(r);
    const PlayedStep p = play(s);
    const auto [computing, communicating] = totals(p);
    CHECK(p.step_ps >= std::max(computing, communicating));
    CHECK(p.step_ps <= computing + communicating);
    CHECK_EQ(p.step_ps, p.only_computing_ps + p.both_ps + p.only_communicating_ps + p.optimizer_ps);
    CHECK_EQ(p.only_computing_ps + p.both_ps + p.optimizer_ps, computing);
    CHECK_EQ(p.both_ps + p.only_communicating_ps, communicating);
    int64_t end[2] = {0, 0}, most = 0;
    for (const StepEvent& e : p.events) {  // on each resource one at a time
      int64_t& last = end[e.kind == StepEvent::Kind::Compute];
      CHECK(e.begin_ps >= last && e.end_ps >= e.begin_ps && e.end_ps <= p.step_ps);
      last = e.end_ps;
    }
    for (const MemoryPoint& m : p.memory) most = std::max(most, m.bytes), CHECK(m.bytes >= 0);
    CHECK_EQ(most, p.peak_bytes);
    // Nothing but states, inputs and gradients is left.
    int64_t left = s.held_bytes;
    for (const StepOperator& o : s.operators) left += o.resident_bytes + o.whole_gradient_bytes;
    for (const StepUnit& u : s.units) left += u.reduce.alone_ps > 0 && !u.slice ? u.kept_gradient_bytes : 0;
    CHECK_EQ(p.memory.back().bytes, left);
    // Monotone: slower collectives, slower operators.
    const auto slow = [&](LaneTime& t) {
      t.alone_ps += static_cast<int64_t>(r() % 100), t.beside_ps = t.alone_ps;
    };
    Step slower = s;
    for (StepUnit& u : slower.units) {
      slow(u.gather);
      if (u.reduce.alone_ps > 0) slow(u.reduce);
    }
    for (StepBucket& b : slower.buckets) slow(b.reduce);
    CHECK(play(slower).step_ps >= p.step_ps);
    slower = s;
    for (StepOperator& o : slower.operators) o.backward_ps += static_cast<int64_t>(r() % 100);
    CHECK(play(slower).step_ps >= p.step_ps);
    // Hindered, it is still not slower than one after the other, unless more is lost than that takes.
    Step hindered = s;
    const auto hinder = [&](LaneTime& t) {
      t.beside_ps = t.alone_ps * static_cast<int64_t>(1 + r() % 5);
      t.transfer_ps = static_cast<int64_t>(r() % static_cast<uint64_t>(t.alone_ps + 1));
    };
    for (StepUnit& u : hindered.units) hinder(u.gather), hinder(u.reduce);
    for (StepBucket& b : hindered.buckets) hinder(b.reduce);
    const PlayedStep contended = play(hindered, static_cast<int64_t>(r() % 1001));
    CHECK(contended.step_ps <= computing + communicating + 4 * static_cast<int64_t>(p.events.size()));
    CHECK(contended.step_ps >= std::max(computing, communicating));
  }
}

// Of several lanes: each is one after the other, all together take no longer than one after the other.
void properties_of_lanes() {
  std::mt19937_64 r(7);
  for (int n = 0; n < 2000; ++n) {
    Step s = random_step(r);
    s.lanes = {.separate_reductions = r() % 2 == 0, .enqueue = r() % 2 == 0};
    const auto transfer = [&](LaneTime& t) {
      t.transfer_ps = static_cast<int64_t>(r() % static_cast<uint64_t>(t.alone_ps + 1));
      t.link = static_cast<Link>(r() % 2);
    };
    for (StepUnit& u : s.units) {
      if (u.reduce.alone_ps > 0 && r() % 2) u.average = {1 + static_cast<int64_t>(r() % 1000), 0};
      u.average.beside_ps = u.average.alone_ps;
      transfer(u.gather), transfer(u.reduce), transfer(u.average);
    }
    const PlayedStep p = play(s);
    int64_t computing = 0, alone = 0;
    std::array<int64_t, 4> end{}, lane{};
    for (const StepEvent& e : p.events) {
      const bool reduces = e.kind == StepEvent::Kind::Reduce || e.kind == StepEvent::Kind::ReduceBucket;
      const size_t on = e.kind == StepEvent::Kind::Compute       ? 0
                        : e.kind == StepEvent::Kind::Average     ? 3
                        : reduces && s.lanes.separate_reductions ? 2
                                                                 : 1;
      CHECK(e.begin_ps >= end.at(on) && e.end_ps >= e.begin_ps && e.end_ps <= p.step_ps);
      end.at(on) = e.end_ps;
      if (on == 0) {
        computing += e.end_ps - e.begin_ps;
        continue;
      }
      const int64_t takes = e.kind == StepEvent::Kind::Gather    ? s.units[e.what].gather.alone_ps
                            : e.kind == StepEvent::Kind::Reduce  ? s.units[e.what].reduce.alone_ps
                            : e.kind == StepEvent::Kind::Average ? s.units[e.what].average.alone_ps
                                                                 : s.buckets[e.what].reduce.alone_ps;
      CHECK(e.end_ps - e.begin_ps >= takes);
      lane.at(on) += takes, alone += takes;
    }
    CHECK(p.step_ps >= std::max({computing, lane[1], lane[2], lane[3]}));
    CHECK(p.step_ps <= computing + alone + 4 * static_cast<int64_t>(p.events.size()));
    CHECK_EQ(p.step_ps, p.only_computing_ps + p.both_ps + p.only_communicating_ps + p.optimizer_ps);
    int64_t left = s.held_bytes;
    for (const StepOperator& o : s.operators) left += o.resident_bytes + o.whole_gradient_bytes;
    for (const StepUnit& u : s.units) left += u.reduce.alone_ps > 0 && !u.slice ? u.kept_gradient_bytes : 0;
    CHECK_EQ(p.memory.back().bytes, left);
    const PlayedStep hindered = play(s, static_cast<int64_t>(r() % 1001));
    CHECK(hindered.step_ps <= computing + alone + 4 * static_cast<int64_t>(p.events.size()));
    CHECK(hindered.step_ps >= std::max({computing, lane[1], lane[2], lane[3]}));
  }
}

}  // namespace

int main() {
  two_units_by_hand();
  contention_by_hand();
  kept_units_are_gathered_once();
  buckets_wait_for_all_members();
  slices_go_one_after_the_other();
  recomputation();
  micro_batches_repeat();
  prefetch_depth();
  small_ones_come_earlier();
  a_budget_holds_back_what_does_not_fit();
  kept_ones_come_at_once();
  reductions_of_their_own_lane();
  gradients_that_leave_fit_the_reserve();
  averages_between_hosts();
  nonsense();
  properties();
  properties_of_lanes();
  return report("test_simulate");
}
