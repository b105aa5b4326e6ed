// The planner: what is returned fits, and no plan is faster than its bound; bisections end
// where they should; time, steps and interruptions end all searches of a wish.
#include "search/planner/planner.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "check.hpp"
#include "random_manner.hpp"
#include "random_model.hpp"
#include "search/certificate/plan_certificate.hpp"
#include "search/planner/objectives.hpp"
#include "search/planner/peak_limit.hpp"

using namespace osdp::search;

namespace {

Request request(int64_t ranks) {
  Request r;
  r.device.ranks = ranks;
  r.device.all_gather = r.device.reduce_scatter = r.device.all_reduce = {1e-9, 1e-10};
  r.space.modes = {Mode::NoShard, Mode::ShardGradOp, Mode::FullShard};
  r.space.granularities = {2};
  r.space.bucket_bytes = 100;
  r.recompute = {Recompute::None, Recompute::Hold, Recompute::Regather};
  return r;
}

Planner planner_of(const Model& model, int64_t ranks = 4) { return {model, request(ranks), manner(model)}; }

Wish wish_for(int64_t limit) {
  Wish wish;
  wish.limit_bytes = limit;
  wish.batches = {{1, 1}, {2, 1}, {4, 1}};
  return wish;
}

// Limits between the least under which there is a plan and four times it.
template <typename Check>
void for_random_models(int count, const Check& check) {
  Random dice(3);
  for (int n = 0; n < count; ++n) {
    const Planner planner = planner_of(random_model(dice, 10));
    Wish nothing = wish_for(0);
    const int64_t least = planner.search(nothing).smallest_limit_bytes;
    check(planner, least, least + static_cast<int64_t>(dice() % (3 * least)));
  }
}

void what_is_returned_fits_and_has_a_proof() {
  for_random_models(6, [](const Planner& planner, int64_t, int64_t limit) {
    const Answer best = planner.search(wish_for(limit));
    CHECK(best.feasible && best.peak_bytes <= limit);
    CHECK(0 < best.step_bound_ps() && best.step_bound_ps() <= best.played.step_ps);
    CHECK(best.played.step_ps == planner.play(best.plan).step_ps);
    std::vector<BatchProof> proof;
    for (const PricedBatches& p : best.proof.priced) {
      proof.push_back({p.least, p.most, {}});
      for (const RowPrice& price : p.prices)
        proof.back().prices.push_back({price.phase, std::llround(price.ps_per_byte * 1e6)});
    }
    Request bounded = planner.request();
    bounded.space.shares = best.proof.shares, bounded.limit_bytes = limit;
    bounded.batches = wish_for(limit).batches;
    const int64_t checked =
        proven_bound_ps(planner.model(), bounded, best.plan.batch.samples(), proof, 1'000'000);
    CHECK(0 < checked && checked <= best.step_bound_ps() + 20);  // rounded
  });
}

// Models whose plans may need more than their sum: frozen units around recomputed blocks, rows that the ranks
// cannot share evenly, several micro-batches. Next to nothing else is large.
void a_step_keeps_its_limit_whatever_its_timing() {
  Random dice(21);
  int held_back = 0;
  for (int n = 0; n < 10; ++n) {
    Model model = random_model(dice, 8);
    for (Operator& op : model.operators) {
      op.saved_bytes_per_sample = op.work_bytes_per_sample = 1;
      for (Tensor& t : op.tensors) t.trainable &= dice() % 2 == 0;
    }
    Request asked = request(4);
    asked.space.modes = {Mode::FullShard, Mode::NoShard};
    asked.space.granularities.clear();
    asked.recompute = {Recompute::Regather};
    const Planner planner(model, asked, manner(model));
    Wish wish = wish_for(0);
    wish.batches = {{1, 3}};
    const int64_t least = planner.search(wish).smallest_limit_bytes;
    wish.limit_bytes = least;
    CHECK(planner.any_plan(wish).feasible);
    for (const int64_t limit : {least, least * 9 / 8, 2 * least}) {
      wish.limit_bytes = limit;
      const Answer best = planner.search(wish);
      CHECK(best.feasible && best.limit_bytes == limit);
      CHECK(best.peak_bytes <= PeakLimit(limit).most_bytes());
      CHECK(best.peak_bytes == planner.largest_peak(best.plan));
      CHECK(planner.player().timeline(best.plan, planner.units(best.plan)).step.peak_bytes <=
            best.peak_bytes);
      held_back += best.plan.gather_bytes > 0;
    }
    wish.limit_bytes = least - 1;
    const Answer none = planner.search(wish);
    CHECK(none.feasible ? none.peak_bytes < least : none.smallest_limit_bytes >= least);
  }
  CHECK(held_back > 5);
}

// Where a transfer delays computation beside it by more than it takes alone, gathering ahead costs time.
void nothing_is_gathered_ahead_that_costs_time() {
  Random dice(5);
  int held_back = 0;
  for (int n = 0; n < 6; ++n) {
    const Model model = random_model(dice, 8);
    Manner delayed = manner(model);
    delayed.stolen_permille = 2800;
    const Planner planner(model, request(4), delayed);
    const Answer best = planner.search(wish_for(int64_t{1} << 40));
    PlainPlan alone = best.plan;
    alone.gather_bytes = 1;
    CHECK(best.played.step_ps <= planner.play(alone).step_ps);
    CHECK(best.peak_bytes == planner.largest_peak(best.plan));
    held_back += best.plan.gather_bytes == 1;
  }
  CHECK(held_back > 0);
}

void a_limit_leaves_its_margin() {
  CHECK_EQ(PeakLimit(1000).most_bytes(), 990);
  for (int64_t peak = 0; peak < 500; ++peak) {
    const int64_t least = PeakLimit::smallest(peak);
    CHECK(PeakLimit(least).most_bytes() >= peak && (peak == 0 || PeakLimit(least - 1).most_bytes() < peak));
  }
}

// What a part of the space has a plan for, the whole has: within the gap.
// `test_planner 500` tries as many problems, each at two limits.
void a_larger_space_needs_no_larger_limit(int problems) {
  Random dice(17);
  double worst = 1;
  for (int n = 0; n < problems; ++n) {
    const Model model = random_model(dice, 6);
    const Request whole = request(4);
    Request part = whole;
    std::erase_if(part.space.modes, [&](Mode m) { return m != Mode::FullShard && dice() % 2 == 0; });
    if (dice() % 2 == 0) part.space.granularities.clear();
    if (dice() % 2 == 0) part.recompute.erase(part.recompute.begin() + dice() % 3);
    const Planner planner(model, whole, manner(model)), smaller(model, part, manner(model));
    Wish wish = wish_for(0);
    const int64_t least = smaller.search(wish).smallest_limit_bytes;
    CHECK(planner.search(wish).smallest_limit_bytes <= least);
    for (const int64_t limit : {least, least * 5 / 4}) {
      wish.limit_bytes = limit;
      const Answer found = planner.search(wish), of_part = smaller.search(wish);
      CHECK(found.feasible && found.peak_bytes <= PeakLimit(limit).most_bytes());
      CHECK(of_part.feasible && found.throughput(4) * (1 + wish.gap) >= of_part.throughput(4));
      if (of_part.feasible) worst = std::min(worst, found.throughput(4) / of_part.throughput(4));
    }
  }
  std::printf("%d problems: the whole space at least %.4f as fast as a part of it\n", problems, worst);
}

// Times that are the largest of two lines in the batch, as the line through a batch and the next one.
Model with_times_of(const Model& model, int64_t batch) {
  Model at = model;
  for (Operator& op : at.operators) {
    const auto line = [batch](double& per_sample, double& fixed) {
      const auto time = [slope = per_sample, once = fixed](int64_t b) {
        return std::max(once + 4 * slope, slope * static_cast<double>(b));
      };
      const auto size = static_cast<double>(batch);
      per_sample = std::min(time(batch + 1) - time(batch), time(batch) / size);
      fixed = time(batch) - per_sample * size;
    };
    line(op.compute_s_per_sample, op.compute_s_fixed);
    line(op.recompute_s_per_sample, op.recompute_s_fixed);
  }
  return at;
}

// Of each batch alone the search knows the times exactly.
void times_may_depend_on_the_batch_in_any_way() {
  Random dice(29);
  int large = 0;
  for (int n = 0; n < 16; ++n) {
    const Model model = random_model(dice, 6);
    const Request asked = request(n % 4 == 0 ? 1 : 4);
    const auto at = [&](int64_t batch) { return with_times_of(model, batch); };
    const Planner planner(at(3), asked, manner(model), at);
    Wish wish = wish_for(0);
    if (n % 2 == 0) wish.batches.clear();
    const int64_t least = planner.search(wish).smallest_limit_bytes;
    wish.limit_bytes = least + static_cast<int64_t>(dice() % (5 * least));
    const Answer found = planner.search(wish);
    CHECK(found.feasible && found.played.step_ps == planner.play(found.plan).step_ps);
    const int64_t batch = found.plan.batch.size;
    CHECK(planner.prove(wish).lower_bound_s_per_sample > 0 || n % 4 == 0);
    large += batch > 1;
    for (int64_t b = 1; b <= 12; ++b) {
      if (!wish.batches.empty() && b != 1 && b != 2 && b != 4) continue;
      const Planner alone(at(b), asked, manner(model));
      Wish one = wish;
      one.batches = {{b, 1}};
      const Answer best = alone.search(one);
      if (!best.feasible) continue;
      CHECK(found.throughput(4) * (1 + wish.gap) >= best.throughput(4));
      CHECK(found.proof.lower_bound_s_per_sample * static_cast<double>(b) * 1e12 <=
            static_cast<double>(best.played.step_ps) + 1);
      if (b == batch) CHECK(planner.play(best.plan).step_ps == best.played.step_ps);
    }
  }
  CHECK(large > 4);
}

void the_least_memory_is_the_least() {
  for_random_models(2, [](const Planner& planner, int64_t least, int64_t limit) {
    Wish wish = wish_for(limit);
    const double most = planner.search(wish).throughput(4);
    wish.objective = Objective::Memory, wish.at_least = most / 2;
    wish.time_limit_s = 100;  // it goes by the clock, and sanitizers are slow
    const Answer found = planner.search(wish);
    // Peaks are no sums: a plan that was searched for its speed may have a smaller one than the smallest
    // known.
    CHECK(found.feasible && found.throughput(4) >= most / 2 && found.limit_bytes * 101 >= least * 100);
    Wish less = wish;
    less.objective = Objective::Throughput, less.limit_bytes = found.limit_bytes - 1;
    const Answer beyond = planner.search(less);
    CHECK(!beyond.feasible || beyond.throughput(4) < most / 2);
    wish.at_least = most * 2;  // too much: the fastest there is
    CHECK(planner.search(wish).throughput(4) == most);
  });
}

void the_largest_batch_is_the_largest() {
  for_random_models(3, [](const Planner& planner, int64_t, int64_t limit) {
    Wish wish = wish_for(limit);
    wish.objective = Objective::Batch;
    const int64_t size = planner.search(wish).plan.batch.size;
    for (int64_t b : {1, 2, 4}) {
      Wish one = wish_for(limit);
      one.batches = {{b, 1}};
      CHECK(planner.search(one).feasible == (b <= size));
    }
  });
}

void a_frontier_only_rises() {
  for_random_models(1, [](const Planner& planner, int64_t least, int64_t limit) {
    Wish wish = wish_for(limit);
    wish.gap = 0.05;
    const UsefulLimits useful = planner.useful_limits(wish);
    CHECK(useful.least == least && useful.most >= least);
    std::vector<int64_t> limits{least - 1, least, limit, useful.most};
    std::sort(limits.begin(), limits.end());
    double before = 0;
    for (const Answer& point : planner.frontier(wish, limits)) {
      CHECK(point.limit_bytes >= least && point.peak_bytes <= point.limit_bytes);
      CHECK(point.throughput(4) >= before);
      before = point.throughput(4);
    }
    CHECK(before > 0);
  });
}

void the_time_is_for_all_searches_of_a_wish() {
  for_random_models(3, [](const Planner& planner, int64_t, int64_t limit) {
    Wish wish = wish_for(limit);
    wish.objective = Objective::Memory, wish.at_least = 1e-9, wish.time_limit_s = 1e-9;
    const Answer found = planner.search(wish);
    // The first plan that was found; no smaller limit was looked at.
    const int64_t kept = PeakLimit::smallest(found.peak_bytes);
    if (found.feasible) CHECK(found.limit_bytes == kept || found.limit_bytes == limit);
    Searches searches(planner, wish, {});
    CHECK(searches.over());
    Wish counted = wish_for(limit);
    Searches endless(planner, counted, {});
    CHECK(!endless.over() && endless.limit_s() == 0);
  });
}

void an_interruption_ends_all_of_them() {
  for_random_models(5, [](const Planner& planner, int64_t, int64_t limit) {
    Wish wish = wish_for(limit);
    const Interrupted at_once = [] { return true; };
    wish.objective = Objective::Memory, wish.at_least = 1e-9;
    const Answer found = planner.search(wish, at_once);
    CHECK(!found.feasible || found.peak_bytes <= limit);
  });
}

void steps_end_a_search_alike() {
  for_random_models(5, [](const Planner& planner, int64_t, int64_t limit) {
    Wish wish = wish_for(limit);
    wish.work = 1;
    const Answer first = planner.search(wish), second = planner.search(wish);
    CHECK(first.feasible == second.feasible && first.plan.choices == second.plan.choices &&
          first.plan.blocks == second.plan.blocks && first.played.step_ps == second.played.step_ps);
  });
}

}  // namespace

int main(int argc, char** argv) {
  what_is_returned_fits_and_has_a_proof();
  a_step_keeps_its_limit_whatever_its_timing();
  a_limit_leaves_its_margin();
  nothing_is_gathered_ahead_that_costs_time();
  a_larger_space_needs_no_larger_limit(argc > 1 ? std::atoi(argv[1]) : 8);
  times_may_depend_on_the_batch_in_any_way();
  the_least_memory_is_the_least();
  the_largest_batch_is_the_largest();
  a_frontier_only_rises();
  the_time_is_for_all_searches_of_a_wish();
  an_interruption_ends_all_of_them();
  steps_end_a_search_alike();
  return report("test_planner");
}
