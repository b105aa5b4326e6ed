// The smallest memory limit with a feasible plan, for cases where the bound of labels/min_memory_bound.hpp
// does not determine it.
#pragma once

#include "search/labels/min_memory_bound.hpp"

namespace osdp::search {

// The smallest limit with a feasible plan, by bisection between a limit known to be infeasible and a feasible
// one. If the budget is spent, a feasible limit.
int64_t smallest_limit(const Model& model, Request request, const Kinds& kinds, const MinMemory& least,
                       const Budget& budget, Stopwatch& watch);

}  // namespace osdp::search
