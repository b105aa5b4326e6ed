#include <algorithm>
#include <numeric>

#include "search/branch/branch_and_bound.hpp"

namespace osdp::search {

// Note [Rounding]
// A good incumbent makes all bounds more effective. The cheapest plan at the relaxation's prices is near the
// optimum, but often exceeds the limit in a phase whose price is zero or too low. So that phase's price is
// raised, a few times, until a plan fits. The memory left over is spent on the operators that gain most. Done
// once for every batch.
void BranchAndBound::round(const BranchNode& w) {
  constexpr int kTurns = 6;
  constexpr double kShare = 0.25;
  if (near(w) || !rounded_.insert(key_of(w)).second) return;
  const int64_t limit = request_.limit_bytes;
  const Pricing pricing(model_, request_, classes_, w.lo, false);
  if (!pricing.possible()) return;
  std::vector<double> prices = phase_prices(w);
  double sum = std::accumulate(prices.begin(), prices.end(), 0.0);
  if (sum == 0) sum = w.bound / static_cast<double>(std::max<int64_t>(limit, 1));
  for (int turn = 0; turn < kTurns && !watch_.stopped(); ++turn) {
    Decision decision = pricing.cheapest(prices);
    PhaseMaxima phases(phase_bytes(model_, request_, classes_, decision, w.lo));
    watch_.spent(static_cast<int64_t>(200 * phases.size()));
    const size_t worst = phases.largest_phase();
    if (phases.at(worst) <= limit) {
      pricing.improve(decision, phases, limit, prices);
      offer(decision, w.lo);
      return;
    }
    prices[worst] += kShare * sum;
    sum += kShare * sum;
  }
}

}  // namespace osdp::search
