// The Lagrangian relaxation of the planner's problem under a few rows (problem/phases.hpp): each row has a
// price per byte, and every operator and block chooses independently. Its optimum over the prices is a lower
// bound for all plans of a region: a box of batch sizes and recomputations.
//
// Computed in doubles: bounds are used with a margin, and the final claims are proven in integers.
#pragma once

#include "search/bounds/region_pricing.hpp"

namespace osdp::search {

// A convex combination of plans that satisfies all rows on average.
struct Mixture {
  double size = 0;           // mean batch size
  std::vector<double> ways;  // number of instances per way, indexed as in Box
};

struct Bounded {
  bool feasible = false;  // false: no plan of the region satisfies all rows
  double time = 0;        // for hi's samples: no plan of the region is faster, up to `error`
  double error = 0;       // bound of the rounding error
  Prices prices{};        // that prove `time`
  size_t row = 0;         // the one with the highest price
  Mixture mixture;        // the relaxation's optimum
};

// `guess`: initial prices, for example a neighbouring region's. Stops as soon as the bound reaches `enough`.
// `cheapest` must belong to `pool`.
Bounded relax(const EquivalenceClasses& classes, const ColumnPool& pool, const Request& request,
              const Region& region, Cheapest& cheapest, const Prices& guess, double enough);

}  // namespace osdp::search
