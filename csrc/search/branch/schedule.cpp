#include "search/branch/schedule.hpp"

#include <algorithm>

#include "search/branch/branch_and_bound.hpp"
#include "search/labels/min_memory_bound.hpp"
#include "search/problem/validate.hpp"

namespace osdp::search {
namespace {

// The smallest limit with a feasible plan, by bisection between a limit known to be infeasible and a feasible
// one, where the bound of `least` does not determine it. If the budget is spent, a feasible limit.
int64_t smallest_limit(const Model& model, Request request, const EquivalenceClasses& classes,
                       const MinMemory& least, const Budget& budget, Stopwatch& watch) {
  request.depth_first = false;
  if (request.batches.empty()) request.batches = {{1, 1}};
  int64_t low = std::max(request.limit_bytes, least.bound_bytes - 1), high = least.peak_bytes;
  if (high >= kLargestSum) return 0;
  while (high - low > 1 && !watch.ask()) {
    request.limit_bytes = low + (high - low) / 2;
    const Schedule s = BranchAndBound(model, request, budget, classes, watch, true).run();
    if (s.feasible) {
      high = std::max(low + 1, std::min(request.limit_bytes, s.peak_bytes));
    } else if (!watch.stopped()) {
      low = request.limit_bytes;
    }
  }
  return high;
}

}  // namespace

Schedule schedule(const Model& model, const Request& request, const Budget& budget, const Known& known) {
  validate(model);
  validate(request);
  Stopwatch watch(budget);
  const EquivalenceClasses classes = find_equivalence_classes(model, request);
  const MinMemory least = min_memory(model, request, classes, request.limit_bytes, watch);
  Schedule s;
  if (request.depth_first || least.bound_bytes <= request.limit_bytes) {
    BranchAndBound search(model, request, budget, classes, watch, false, known);
    if (!request.depth_first && least.peak_bytes <= request.limit_bytes) {
      search.offer(least.decision, least.batch);
    }
    for (const Found& plan : known.plans)
      if (request.has(plan.batch)) search.offer(plan.decision, plan.batch);
    s = search.run();
  }
  // A search that was stopped has not proven that nothing fits.
  if (!s.feasible && s.lower_bound_s_per_sample == 0 && request.find_smallest &&
      (!watch.stopped() || least.bound_bytes > request.limit_bytes)) {
    s.smallest_limit_bytes = smallest_limit(model, request, classes, least, budget, watch);
  }
  s.stopped = watch.stopped();
  s.seconds = watch.seconds();
  return s;
}

}  // namespace osdp::search
