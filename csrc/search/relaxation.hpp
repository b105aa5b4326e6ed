// The Lagrangian relaxation of the planner's problem under a few rows (phases.hpp): each row has a price per
// byte, and every operator and block chooses for itself. Its optimum over the prices bounds all plans of a
// box of batch sizes, transients and recomputations from below.
//
// Doubles: bounds are used with a margin, and whatever is claimed in the end is proven in integers.
#pragma once

#include "search/evaluator.hpp"

namespace osdp::search {

struct Bounded {
  bool feasible = false;  // false: no plan of the region keeps all rows
  double time = 0;        // no plan of the region is faster, but for rounding
  double error = 0;       // the rounding
  Prices prices{};        // that prove it
  size_t row = 0;         // with the highest price
  std::vector<int> ways;  // whole numbers near the optimum, as Box
};

// `guess`: prices to begin with, a neighbouring region's. Regions whose bound reaches `enough` are not
// bounded any better. `cheapest`: of the table and the region's largest transient.
Bounded relax(const Kinds& kinds, const Table& table, const Request& request, const Region& region,
              Cheapest& cheapest, const Prices& guess, double enough);

}  // namespace osdp::search
