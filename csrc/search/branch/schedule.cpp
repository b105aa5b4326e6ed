#include "search/branch/schedule.hpp"

#include "search/branch/branch_and_bound.hpp"
#include "search/branch/smallest_limit.hpp"
#include "search/labels/min_memory_bound.hpp"
#include "search/problem/validate.hpp"

namespace osdp::search {

Schedule schedule(const Model& model, const Request& request, const Budget& budget,
                  const ScheduleTuning& tuning) {
  validate(model);
  validate(request);
  Stopwatch watch(budget);
  const Kinds kinds = find_kinds(model, request);
  const MinMemory least = min_memory(model, request, kinds, request.limit_bytes, watch);
  Schedule s;
  if (request.depth_first || least.bound_bytes <= request.limit_bytes) {
    BranchAndBound search(model, request, budget, kinds, watch, false, tuning);
    if (!request.depth_first && least.peak_bytes <= request.limit_bytes) {
      search.offer(least.decision, least.batch);
    }
    s = search.run();
  }
  // A search that was stopped has not proven that nothing fits.
  if (!s.feasible && request.find_smallest && (!watch.stopped() || least.bound_bytes > request.limit_bytes)) {
    s.smallest_limit_bytes = smallest_limit(model, request, kinds, least, budget, watch);
  }
  s.seconds = watch.seconds();
  return s;
}

}  // namespace osdp::search
