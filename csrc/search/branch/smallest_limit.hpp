// The least memory limit under which a plan exists, where the bound of labels/min_memory_bound.hpp leaves it
// open.
#pragma once

#include "search/labels/min_memory_bound.hpp"

namespace osdp::search {

// The least limit under which a plan exists, by halving between what is known to be too little and enough.
// Where time runs out, a limit that works.
int64_t smallest_limit(const Model& model, Request request, const Kinds& kinds, const MinMemory& least,
                       const Budget& budget, Stopwatch& watch);

}  // namespace osdp::search
