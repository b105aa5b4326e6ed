// What is asked over many limits or batches: bisections, each step of which is a search.
#pragma once

#include "search/planner/searches.hpp"

namespace osdp::search {

// The plan of the smallest limit whose best plan gives `wish.at_least` samples per second, to the byte; where
// time runs out, of the smallest limit by then. Where no plan under the wish's limit gives as many, the
// fastest there is.
Answer least_memory(Searches& searches);

// The largest that fits; the smallest asked for where none does; where time runs out, the largest that is
// known to fit.
Batch largest_batch(Searches& searches);

}  // namespace osdp::search
