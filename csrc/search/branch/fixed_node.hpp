// The exact solver for a leaf: batch size and the number of blocks per recomputation are fixed, the sharding
// of each operator remains to be chosen.
#pragma once

#include "search/bounds/column_generation.hpp"
#include "search/knapsack/solve.hpp"

namespace osdp::search {

struct FixedNode {
  Status status = Status::Infeasible;       // Infeasible: no plan faster than the cutoff keeps the row
  int64_t time_ps = 0, lower_bound_ps = 0;  // of the whole step
  Decision decision;                        // empty if nothing was found
  int64_t nodes = 0;
};

// `region` has one batch size, and fixed numbers of instances per way. `bounded`: its
// relaxation. Only the row with the highest price is kept: the plan, whose time is then a lower bound, may
// violate others.
FixedNode solve_fixed_node(const EquivalenceClasses& classes, const ColumnPool& pool, const Request& request,
                           const Region& region, const Bounded& bounded, const Model& model,
                           int64_t cutoff_ps, const Budget& budget);

}  // namespace osdp::search
