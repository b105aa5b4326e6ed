// The least memory that any plan needs. Note [Least memory] in labels/min_memory_bound.cpp.
#pragma once

#include "search/problem/phases.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {

struct MinMemory {
  int64_t bound_bytes = 0;  // lower bound of every plan's memory
  int64_t peak_bytes = 0;   // memory of `decision`; equal to the bound if proven least
  Batch batch;
  Decision decision;
};

// Minimizes over the requested batches (batch size 1 if all are allowed), recomputation and choices. Stops at
// the first plan of at most `enough_bytes`, then without a bound.
MinMemory min_memory(const Model& model, Request request, const EquivalenceClasses& classes,
                     int64_t enough_bytes, Stopwatch& watch);

}  // namespace osdp::search
