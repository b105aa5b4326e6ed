// State shared by the steps of the exact search: the relaxation, reduced costs, and the best plan so far.
#pragma once

#include <algorithm>

#include "search/knapsack/hull_bound.hpp"
#include "search/knapsack/solve.hpp"

namespace osdp::search {

// An option's reduced cost is the amount by which choosing it raises the relaxation's bound: t + lambda m
// minus the minimum in its group. A plan's time is at least that bound plus the sum of its reduced costs.
struct ReducedCosts {
  std::vector<std::vector<int64_t>> of;  // [group][option], picoseconds, rounded down: bounds stay valid
  std::vector<int> cheapest;             // [group]: an option of reduced cost 0
};

ReducedCosts reduced_costs(const std::vector<Group>& groups, Multiplier multiplier);

// The best plan so far; `counts` as in spread_choices.
struct Incumbent {
  int64_t time_ps = 0, memory_bytes = 0;
  std::vector<std::vector<int64_t>> counts;
};

struct Context {
  int64_t limit_bytes;
  const std::vector<Group>& groups;
  const Relaxation& relaxed;
  Stopwatch& watch;
  const Tuning& tuning;
  Statistics statistics;
  ReducedCosts reduced;
  Incumbent best;
  int64_t step_ps = 1;   // times of plans differ by multiples of this
  int64_t bound_ps = 0;  // no plan is faster
  double gap = 0;        // see Budget

  bool proven() const { return bound_ps >= best.time_ps; }
  bool good_enough() const {
    return proven() ||
           static_cast<double>(best.time_ps - bound_ps) <= gap * static_cast<double>(best.time_ps);
  }
  // The largest sum of reduced costs that a plan faster than the incumbent can have.
  int64_t allowance() const { return best.time_ps - step_ps - relaxed.lower_bound_ps; }
  void raise_bound(int64_t bound) {
    bound_ps = std::max(bound_ps, bound);
    if (bound_ps > best.time_ps - step_ps) bound_ps = best.time_ps;  // no plan's time lies between
  }
};

// One round of the exact search (knapsack/core_search.cpp): every plan whose reduced costs sum to at most an
// allowance. Improves context.best. Returns true if complete: then no plan of time <= threshold_ps is faster
// than the incumbent. Returns false if the watch stopped it. `beam`: lists are truncated to `cap` sums
// instead of cut into chunks; that only finds plans, and returns false if anything was truncated.
bool search_core(Context& context, int64_t threshold_ps, size_t cap, bool beam);

}  // namespace osdp::search
