#include <algorithm>

#include "search/branch/branch_and_bound.hpp"

namespace osdp::search {

// Note [All phases]
// If many phases bind, adding rows one by one raises the bound slowly. So before one batch is
// branched further, the prices of all phases are optimised together by a subgradient method: the excess over
// the limit, by phase, of the cheapest plan at some prices is a subgradient. Directions are averages over
// turns (the volume algorithm of Barahona and Anbil); step lengths follow from the gap between the bound and
// the best plan. Every turn gives a bound for this batch. The first turn's plan is repaired
// until it fits, improved with the memory left over, and offered as an incumbent. The phases of the highest
// prices become rows.
//
// True if rows were added.
bool BranchAndBound::price_phases(BranchNode& w) {
  constexpr int kTurns = 80;
  if (any_ || rows_.size() < first_rows_ + 2 || !priced_.insert(key_of(w)).second) return false;
  const auto samples = static_cast<double>(w.samples);
  const auto upper = [&] {
    if (!best_.feasible) return 1.05 * w.bound;
    return samples * static_cast<double>(best_.step_ps) / static_cast<double>(best_.batch.samples());
  };
  const int64_t limit = request_.limit_bytes;
  const Pricing pricing = this->pricing(w);
  if (!pricing.possible()) return false;
  const size_t n = pricing.phases();
  std::vector<double> best = phase_prices(w), average;
  if (near(w)) {  // the rows' prices are good enough
    make_subproblem(w, best);
    return false;
  }
  std::vector<double> prices = best;
  double bound = 0, share = 0.02;
  int idle = 0;
  for (int turn = 0; turn < kTurns && !watch_.stopped(); ++turn) {
    Decision decision;
    const double value = pricing.cheapest(prices, static_cast<double>(limit), decision);
    std::vector<int64_t> phases = phase_bytes(model_, request_, classes_, decision, w.lo);
    watch_.spent(static_cast<int64_t>(200 * n));
    if (average.empty()) average.assign(phases.begin(), phases.end());
    for (size_t j = 0; j < n; ++j) average[j] += 0.1 * (static_cast<double>(phases[j]) - average[j]);
    if (turn == 0) {
      auto mended = phases;
      if (pricing.repair(decision, mended, limit)) {
        pricing.improve(decision, mended, limit, prices);
        offer(decision, w.lo);
      }
    }
    if (turn == 0 || value > bound) {
      bound = value;
      best = prices;
      share = std::min(2.0, 1.2 * share);
      idle = 0;
    } else if (++idle == 8) {
      share *= 0.6;
      idle = 0;
    }
    const double apart = std::min(upper() - bound, 0.05 * std::abs(bound));
    if (apart <= 1e-4 * bound) break;
    double norm = 0;
    for (size_t j = 0; j < n; ++j) {
      const double over = average[j] - static_cast<double>(limit);
      if (over > 0 || best[j] > 0) norm += over * over;
    }
    if (norm == 0) break;
    for (size_t j = 0; j < n; ++j) {
      const double over = average[j] - static_cast<double>(limit);
      prices[j] = std::max(0.0, best[j] + share * apart / norm * over);
    }
  }
  w.bound = std::max(w.bound, bound);
  if (make_subproblem(w, best)) return false;
  return add_rows(best);
}

// The prices of a region's rows, indexed by phase.
std::vector<double> BranchAndBound::phase_prices(const BranchNode& w) const {
  std::vector<double> prices(request_.paper() ? 1 : model_.operators.size(), 0);
  for (size_t j = 0; j < rows_.size(); ++j) prices[static_cast<size_t>(std::max(rows_[j], 0))] += w.prices[j];
  return prices;
}

// Adds the phases with the highest prices, at least a hundredth of the sum of all, as rows.
bool BranchAndBound::add_rows(const std::vector<double>& prices) {
  if (request_.paper()) return false;
  double sum = 0;
  for (double p : prices) sum += p;
  std::vector<int> order;
  for (size_t j = 0; j < prices.size(); ++j) {
    if (prices[j] > 0.01 * sum && std::find(rows_.begin(), rows_.end(), static_cast<int>(j)) == rows_.end()) {
      order.push_back(static_cast<int>(j));
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return prices[a] > prices[b]; });
  bool added = false;
  for (size_t k = 0; k < order.size() && rows_.size() + 3 < kMostRows; ++k) {  // room for violated ones
    rows_.push_back(order[k]);
    added = true;
  }
  return added;
}

}  // namespace osdp::search
