// One round of the exact search: every plan whose reduced costs sum to at most an allowance.
#pragma once

#include "search/knapsack/context.hpp"

namespace osdp::search {

// Improves context.best. True if complete: then no plan of time <= threshold_ps is faster than the incumbent.
// False when the watch has stopped. `beam`: lists are cut to `cap` sums, not into chunks; that finds plans,
// and is false where anything was cut.
bool search_core(Context& context, int64_t threshold_ps, size_t cap, bool beam);

}  // namespace osdp::search
