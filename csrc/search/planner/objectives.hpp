// Objectives over many limits or batches, by bisection; each step of it is a search.
#pragma once

#include "search/planner/searches.hpp"

namespace osdp::search {

// The best plan under the smallest limit, to the byte, at which it reaches `wish.at_least` samples per
// second; if time runs out, under the smallest such limit found. If no plan under the wish's limit is fast
// enough, the fastest one.
Answer least_memory(Searches& searches);

// The largest batch that fits; if none does, the smallest requested one; if time runs out, the largest one
// known to fit.
Batch largest_batch(Searches& searches);

}  // namespace osdp::search
