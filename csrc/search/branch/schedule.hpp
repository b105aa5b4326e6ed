// The search for the feasible plan with the least time per sample, over batch sizes, recomputation of
// blocks and sharding of operators. See docs/search.md for the objective.
#pragma once

#include "search/branch/fixed_node.hpp"
#include "search/branch/runners_up.hpp"

namespace osdp::search {

struct Schedule {
  bool feasible = false;
  bool optimal = false;  // over the whole space: batches, recomputation, choices
  bool stopped = false;  // by the budget; if not, and not feasible, no plan fits
  Batch batch;
  Decision decision;
  int64_t step_ps = 0, peak_bytes = 0;
  std::vector<int> phases;              // those that were rows: operator indices, or kWholeStep
  std::vector<Found> runners_up;        // other plans, nearly as fast (branch/runners_up.hpp)
  int64_t smallest_limit_bytes = 0;     // if infeasible: the smallest feasible limit; 0: not known
  double lower_bound_s_per_sample = 0;  // per rank; proven by the whole search
  int64_t regions = 0, leaves = 0, nodes = 0, rows = 0;
  double seconds = 0;
};

// The plan that a search found.
inline Found found_of(const Schedule& s) { return {s.batch, s.decision, s.step_ps, s.peak_bytes}; }

Schedule schedule(const Model& model, const Request& request, const Budget& budget = {});

}  // namespace osdp::search
