// The search for the feasible plan with the least time per sample, over batch sizes, recomputation of
// blocks and sharding of operators. See docs/search.md for the objective.
#pragma once

#include <limits>

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
  std::vector<int> phases;           // those that were rows: operator indices, or kWholeStep
  std::vector<Found> runners_up;     // other plans, nearly as fast (branch/runners_up.hpp)
  int64_t smallest_limit_bytes = 0;  // if infeasible: the smallest limit known to be feasible; 0: none
  // Per rank, proven by the whole search; without a plan only if the bound is Known::enough.
  double lower_bound_s_per_sample = 0;
  int64_t open_size = 0;  // a micro-batch whose plans may be that fast; 0: none is but the plan's
  int64_t work = 0;       // steps that the search took, if it counted them
  int64_t regions = 0, leaves = 0, nodes = 0, rows = 0;
  double seconds = 0;
};

// The plan that a search found.
inline Found found_of(const Schedule& s) { return {s.batch, s.decision, s.step_ps, s.peak_bytes}; }

// What is known of a problem before it is searched.
struct Known {
  std::vector<Found> plans;       // of the request's space, whether or not they fit
  double bound_s_per_sample = 0;  // no plan is faster
  // Bounds from here on need not be sharp: the search ends there, also without a plan.
  double enough_s_per_sample = std::numeric_limits<double>::infinity();
};

Schedule schedule(const Model& model, const Request& request, const Budget& budget = {},
                  const Known& known = {});

}  // namespace osdp::search
