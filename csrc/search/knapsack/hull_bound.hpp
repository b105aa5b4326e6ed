// The Lagrangian bound: every operator may take a mixture of its options, so that only the lower convex hull
// of its (memory, time) points matters. Its optimum is integral for all but one operator, and its multiplier
// is the price of memory.
#pragma once

#include "search/knapsack/operator_groups.hpp"

namespace osdp::search {

// An edge of a group's convex hull: from option `from` to option `to` (more memory, less time).
struct Edge {
  int group = 0, from = 0, to = 0;
  int64_t memory_bytes = 0;  // > 0
  int64_t gain_ps = 0;       // > 0
};

// Indices into group.options of the lower convex hull, by ascending memory (first: least memory; last: least
// time).
std::vector<int> lower_hull(const std::vector<Option>& options);

// All hull edges, best gain per byte first; equal ones in group order.
std::vector<Edge> hull_edges(const std::vector<Group>& groups);

struct Relaxation {
  bool feasible = false;
  int64_t smallest_limit_bytes = 0;
  int64_t lower_bound_ps = 0;  // the relaxation's optimum, rounded up
  Multiplier multiplier;       // gain / memory of the first edge that does not fit entirely; 0 / 1 if all fit
  // A feasible plan: all edges before that one, then as many later ones as fit. `counts` as in
  // spread_choices.
  std::vector<std::vector<int64_t>> counts;
  int64_t time_ps = 0, memory_bytes = 0;
};

Relaxation relax(const std::vector<Group>& groups, const std::vector<Edge>& edges, int64_t limit_bytes);

// The multiplier with the highest bound. `problem` must be valid and feasible.
Multiplier price_of_memory(const ProblemView& problem);

}  // namespace osdp::search
