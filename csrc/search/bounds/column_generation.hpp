// The Lagrangian relaxation of the planner's problem under a few rows (problem/phases.hpp): each row has a
// price per byte, and every operator and block chooses for itself. Its optimum over the prices bounds all
// plans of a box of batch sizes, transients and recomputations from below.
//
// Doubles: bounds are used with a margin, and whatever is claimed in the end is proven in integers.
#pragma once

#include "search/bounds/region_pricing.hpp"

namespace osdp::search {

// Of plans whose average keeps all rows.
struct Mixture {
  double size = 0, size_apart = 0;            // batch: the average, and how far from it the plans are
  double transient = 0, transient_apart = 0;  // the largest, bytes
  std::vector<double> ways;                   // how many instances are treated each way, as Box
};

struct Bounded {
  bool feasible = false;  // false: no plan of the region keeps all rows
  double time = 0;        // of hi's samples: no plan of the region is faster, but for rounding
  double error = 0;       // the rounding
  Prices prices{};        // that prove it
  size_t row = 0;         // with the highest price
  Mixture mixture;        // the optimum
};

// Whole numbers near a mixture of ways that keep the box.
std::vector<int> whole_ways(const ColumnPool& pool, const Box& box, const std::vector<double>& mixed);

// `guess`: prices to begin with, a neighbouring region's. Regions whose bound reaches `enough` are not
// bounded any better. `cheapest`: of the pool.
Bounded relax(const Kinds& kinds, const ColumnPool& pool, const Request& request, const Region& region,
              Cheapest& cheapest, const Prices& guess, double enough);

}  // namespace osdp::search
