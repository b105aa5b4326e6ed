#include "search/bounds/column_generation.hpp"

#include <algorithm>
#include <cmath>

#include "search/bounds/master_problem.hpp"

namespace osdp::search {

namespace {

// Weights refer to the plans themselves, so the scaling of points is undone.
Mixture mixture_of(const std::vector<std::pair<double, const Point*>>& points) {
  Mixture m;
  double sum = 0;
  for (const auto& [weight, p] : points) sum += weight * p->scale;
  if (!(sum > 0)) sum = 1;
  for (const auto& [weight, p] : points) {
    const double share = weight * p->scale / sum;
    m.size += share * static_cast<double>(p->size);
    m.ways.resize(p->ways.size(), 0);
    for (size_t w = 0; w < m.ways.size(); ++w) m.ways[w] += share * p->ways[w];
  }
  return m;
}

}  // namespace

Bounded relax(const EquivalenceClasses& classes, const ColumnPool& pool, const Request& request,
              const Region& region, Cheapest& cheapest, const Prices& guess, double enough) {
  Evaluator evaluate(classes, pool, request, region, cheapest);
  const size_t rows = pool.rows;
  Bounded best;
  Prices limit{};
  for (size_t j = 0; j < rows; ++j) limit[j] = evaluate.limit(j);
  double magnitude = 0;
  const auto bound = [&](const Point& p, const Prices& prices) {
    double value = p.time, size = p.time;
    for (size_t j = 0; j < rows; ++j) {
      value += prices[j] * (p.bytes[j] - limit[j]);
      size += prices[j] * (p.bytes[j] + std::abs(limit[j]));
    }
    if (!best.feasible || value > best.time) {
      best.feasible = true;
      best.time = value;
      best.prices = prices;
      magnitude = size;
    }
    return value;
  };
  const auto done = [&]() -> Bounded& {
    for (size_t j = 1; j < rows; ++j) {
      if (best.prices[j] > best.prices[best.row]) best.row = j;
    }
    best.error = 1 + 4e-14 * magnitude;
    return best;
  };
  Point point;
  evaluate.at(guess, 1, point);
  bound(point, guess);
  best.mixture = mixture_of({{1.0, &point}});
  if (best.time > enough + 1e-9 * std::abs(enough)) return done();
  for (double penalty = 8 * std::max(point.time, 1.0);; penalty *= 64) {
    Master master(rows, point, limit, penalty);
    Prices prices;
    for (int turn = 0; turn < 120; ++turn) {
      const double upper = master.duals(prices);
      evaluate.at(prices, 1, point);
      const double value = bound(point, prices);
      if (best.time > enough + 1e-9 * std::abs(enough)) break;
      const double near = 1e-11 * std::abs(upper);
      if (value >= upper - near - 1e-11 * std::abs(value) || best.time >= upper - near) break;
      master.add(point);
    }
    best.mixture = mixture_of(master.weights());
    if (best.time > enough + 1e-9 * std::abs(enough) || !master.exceeds()) return done();
    // The region is infeasible if at these prices, or in one row alone, even the plan of least memory exceeds
    // the limits.
    Point least;
    double over = 0, size = 0;
    evaluate.at(prices, 0, least);
    for (size_t j = 0; j < rows; ++j) {
      over += prices[j] * (least.bytes[j] - limit[j]);
      size += prices[j] * (least.bytes[j] + std::abs(limit[j]));
    }
    if (over > 1e-13 * size) return {};
    for (size_t j = 0; j < rows; ++j) {
      Prices alone{};
      alone[j] = 1;
      evaluate.at(alone, 0, least);
      if (least.bytes[j] > limit[j]) return {};
    }
    if (penalty > 1e30) return done();
    point = least;
  }
}

}  // namespace osdp::search
