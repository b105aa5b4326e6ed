// Note [Least memory]
// The plan that is least in one phase is found operator by operator (Pricing), and what it holds then is a
// lower bound of every plan's memory. The smallest choices are usually smallest in all phases, so that the
// plan's largest phase is often no larger than the limit. Otherwise the least plan of each batch whose bound
// is below the best plan is found exactly (labels/min_peak.hpp).
#include "search/labels/min_memory_bound.hpp"

#include <algorithm>

#include "search/bounds/pricing.hpp"
#include "search/labels/min_peak.hpp"

namespace osdp::search {

MinMemory min_memory(const Model& model, Request request, const EquivalenceClasses& classes,
                     int64_t enough_bytes, Stopwatch& watch) {
  struct Open {
    Batch batch;
    int64_t bound;
  };
  constexpr int64_t kExact = int64_t{1} << 53;  // what floating point adds exactly
  std::vector<Open> open;
  MinMemory best;
  best.peak_bytes = kLargestSum;
  for (const auto& [batch, _] : request.ranges()) {  // the smallest batch of a range needs the least
    const Pricing pricing(model, request, classes, batch, true);
    if (!pricing.possible()) continue;
    std::vector<double> last_phase(pricing.phases(), 0);
    last_phase.back() = 1;
    Decision decision = pricing.cheapest(last_phase);
    const auto phases = phase_bytes(model, request, classes, decision, batch);
    open.push_back({batch, phases.back() < kExact ? phases.back() : 0});
    const int64_t peak = *std::max_element(phases.begin(), phases.end());
    if (peak < best.peak_bytes) best = {0, peak, batch, std::move(decision)};
    if (best.peak_bytes <= enough_bytes || watch.spent(static_cast<int64_t>(50 * phases.size()))) return best;
  }
  for (auto& [batch, bound] : open) {
    if (bound >= best.peak_bytes || watch.stopped()) continue;
    request.limit_bytes = best.peak_bytes - 1;
    const ChainResources chain(model, request, classes, batch, true);
    if (!chain.possible()) continue;
    MinPeak least = min_peak(chain, watch);
    if (least.found) best = {0, least.peak_bytes + chain.reserved(), batch, std::move(least.decision)};
    if (!least.complete) continue;
    bound = best.peak_bytes;
    if (best.peak_bytes <= enough_bytes) return best;
  }
  best.bound_bytes = best.peak_bytes;
  for (const auto& [batch, bound] : open) best.bound_bytes = std::min(best.bound_bytes, bound);
  return best;
}

}  // namespace osdp::search
