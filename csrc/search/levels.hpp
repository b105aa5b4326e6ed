// Search by lattice lines, where the costs left open lie on few of them.
#pragma once

#include "search/context.hpp"

namespace osdp::search {

// Looks for plans faster than context.best. True if it has shown that there are none (any more); false where
// lines are too many or the work too much: nothing is proven then, but plans found and a bound raised stand.
bool search_levels(Context& context);

}  // namespace osdp::search
