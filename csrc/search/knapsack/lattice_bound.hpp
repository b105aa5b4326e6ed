// The lattice bound: costs have structure. Every plan's (time, memory) differs from one plan's by a sum of
// differences between options of one operator, so all plans lie on a lattice; a lower bound may be raised to
// the first lattice point that is neither over the memory limit nor under the Lagrangian line. With the
// paper's formula the lattice knows that the number of sharded slices is whole: the gap of the Lagrangian
// bound usually closes without any search.
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

// Adds a difference of two plans: the lattice becomes the one spanned by it and the old one.
void extend(Lattice& lattice, int64_t time_ps, int64_t memory_bytes);

// The least time >= lower_bound_ps of a lattice point (T, M) with M <= limit and T + lambda M >= `line`,
// where the line is lower_line_ps + lambda * limit (lower_line_ps: rounded down relaxation optimum; valid:
// any value <= the optimum). Never less than lower_bound_ps. Work is capped: a very irregular lattice gives a
// weaker, still valid bound.
int64_t lattice_bound(const Lattice& lattice, int64_t limit_bytes, int64_t lower_bound_ps, Multiplier lambda);

}  // namespace osdp::search
