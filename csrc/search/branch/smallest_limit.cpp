#include "search/branch/smallest_limit.hpp"

#include <algorithm>

#include "search/branch/branch_and_bound.hpp"

namespace osdp::search {

int64_t smallest_limit(const Model& model, Request request, const Kinds& kinds, const MinMemory& least,
                       const Budget& budget, Stopwatch& watch) {
  request.depth_first = false;
  if (request.batches.empty()) request.batches = {{1, 1}};
  int64_t low = std::max(request.limit_bytes, least.bound_bytes - 1), high = least.peak_bytes;
  if (high >= kLargestSum) return 0;
  if (high - low <= 1 || watch.stopped()) return high;
  const bool once = std::all_of(request.batches.begin(), request.batches.end(),
                                [](const Batch& b) { return b.accumulation == 1; });
  const Kinds few = once ? leanest(kinds, 1) : kinds;
  while (high - low > 1 && !watch.ask()) {
    request.limit_bytes = low + (high - low) / 2;
    const Schedule s = BranchAndBound(model, request, budget, few, watch, true).run();
    if (s.feasible) {
      high = std::max(low + 1, std::min(request.limit_bytes, s.peak_bytes));
    } else if (!watch.stopped()) {
      low = request.limit_bytes;
    }
  }
  return high;
}

}  // namespace osdp::search
