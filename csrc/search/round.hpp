// One round of the exact search: every plan whose reduced costs sum to at most an allowance.
#pragma once

#include "search/context.hpp"

namespace osdp::search {

// Improves context.best. Complete unless the watch has stopped: afterwards no plan of time <= threshold_ps is
// faster than the incumbent. `beam`: lists are cut to `cap` sums instead; finds plans, proves nothing.
void search_round(Context& context, int64_t threshold_ps, size_t cap, bool beam);

}  // namespace osdp::search
