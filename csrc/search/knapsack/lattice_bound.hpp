// The lattice bound. The (time, memory) points of two plans differ by a sum of differences between options of
// one operator, so all plans lie on a lattice, and a lower bound can be raised to the least time of a lattice
// point that is neither above the memory limit nor below the Lagrangian line. With the paper's cost formula
// the lattice captures that the number of sharded slices is an integer, which usually closes the gap of the
// Lagrangian bound without any search.
#pragma once

#include "search/knapsack/operator_groups.hpp"

namespace osdp::search {

// The lattice spanned by (0, d) and (a, b), 0 <= b < d; a, d >= 0; d == 0: one line only. In picoseconds and
// bytes.
struct Lattice {
  int64_t a = 0, b = 0, d = 0;
  int64_t base_time_ps = 0, base_memory_bytes = 0;  // one point (any plan)
};

Lattice make_lattice(const std::vector<Group>& groups);

// The least time >= lower_bound_ps of a lattice point (T, M) with M <= limit and T + lambda M >= `line`,
// where the line is lower_line_ps + lambda * limit (lower_line_ps: rounded down relaxation optimum; valid:
// any value <= the optimum). Never less than lower_bound_ps. Work is capped: a very irregular lattice gives a
// weaker, still valid bound.
int64_t lattice_bound(const Lattice& lattice, int64_t limit_bytes, int64_t lower_bound_ps, Multiplier lambda);

}  // namespace osdp::search
