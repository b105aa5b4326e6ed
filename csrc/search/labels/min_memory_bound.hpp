// The least memory that any plan needs. Note [Least memory] in labels/min_memory_bound.cpp.
#pragma once

#include "search/problem/phases.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {

struct MinMemory {
  int64_t bound_bytes = 0;  // no plan needs less
  int64_t peak_bytes = 0;   // this plan needs so much; equal to the bound where it is the least
  Batch batch;
  Decision decision;
};

// Over the batches asked for (all: 1), every transient, recomputation and choice. The first plan of no more
// than `enough_bytes` ends it, with no bound.
MinMemory min_memory(const Model& model, const Request& request, const Kinds& kinds, int64_t enough_bytes,
                     Stopwatch& watch);

// Without the choices and recomputations that need no less memory in any phase than others do.
Kinds leanest(const Kinds& kinds, int64_t accumulation);

}  // namespace osdp::search
