// One round of the exact search: every plan whose reduced costs sum to at most an allowance.
#pragma once

#include "search/knapsack/context.hpp"

namespace osdp::search {

// Improves context.best. Returns true if complete: then no plan of time <= threshold_ps is faster than the
// incumbent. Returns false if the watch stopped it. `beam`: lists are truncated to `cap` sums instead of cut
// into chunks; that only finds plans, and returns false if anything was truncated.
bool search_core(Context& context, int64_t threshold_ps, size_t cap, bool beam);

}  // namespace osdp::search
