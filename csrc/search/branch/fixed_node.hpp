// The exact problem that is left when batch size, largest transient and the number of blocks treated each way
// are fixed: how each operator is sharded.
#pragma once

#include "search/bounds/column_generation.hpp"
#include "search/knapsack/solve.hpp"

namespace osdp::search {

struct FixedNode {
  Status status = Status::Infeasible;       // Infeasible: nothing faster than the cutoff keeps the rows
  int64_t time_ps = 0, lower_bound_ps = 0;  // of the whole step
  Decision decision;                        // empty where nothing was found
  int64_t nodes = 0;
};

// `region`: one batch size, one transient, one way for every instance. `bounded`: its relaxation.
FixedNode solve_fixed_node(const Kinds& kinds, const ColumnPool& pool, const Request& request,
                           const Region& region, const Bounded& bounded, const Model& model,
                           int64_t cutoff_ps, Stopwatch& watch, const Budget& budget);

}  // namespace osdp::search
