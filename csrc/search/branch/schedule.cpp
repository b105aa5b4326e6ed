#include "search/branch/schedule.hpp"

#include <algorithm>

#include "search/branch/branch_and_bound.hpp"
#include "search/labels/feasible_options.hpp"
#include "search/labels/min_memory_bound.hpp"
#include "search/problem/validate.hpp"

namespace osdp::search {

Schedule schedule(const Model& model, const Request& request, const Budget& budget, const Known& known) {
  validate(model);
  validate(request);
  Stopwatch watch(budget);
  const EquivalenceClasses classes = find_equivalence_classes(model, request);
  const MinMemory least = min_memory(model, request, classes, request.limit_bytes, watch);
  Schedule s;
  if (request.depth_first || least.bound_bytes <= request.limit_bytes) {
    const FeasibleOptions feasible(model, request, classes);
    BranchAndBound search(model, request, budget, feasible.classes(), watch, known);
    const auto offer = [&](Decision plan, Batch batch) {
      if (request.has(batch) && feasible.narrow(plan)) search.offer(plan, batch);
    };
    if (!request.depth_first && least.peak_bytes <= request.limit_bytes) offer(least.decision, least.batch);
    for (const Found& plan : known.plans) offer(plan.decision, plan.batch);
    s = search.run();
    if (s.feasible) feasible.widen(s.decision);
    for (Found& plan : s.runners_up) feasible.widen(plan.decision);
  }
  // A search that was stopped has not proven that nothing fits.
  if (!s.feasible && s.lower_bound_s_per_sample == 0 && request.find_smallest &&
      least.peak_bytes < kLargestSum && (!watch.stopped() || least.bound_bytes > request.limit_bytes)) {
    s.smallest_limit_bytes = least.peak_bytes;
  }
  s.stopped = watch.stopped();
  s.seconds = watch.seconds();
  return s;
}

}  // namespace osdp::search
