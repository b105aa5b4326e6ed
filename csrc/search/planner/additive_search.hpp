// The search where a step is a sum over operators: with the paper's costs, and for one rank, where nothing
// overlaps. Its limit is that of the sum.
#pragma once

#include "search/planner/searches.hpp"

namespace osdp::search {

// The optimum with its bound; if nothing fits, the smallest limit under which something does. `gap`: accept
// a plan that is within this fraction of the bound.
Answer additive_optimum(Searches& searches, Request problem, double gap = 0);

}  // namespace osdp::search
