// The part of a proof that is checked without a search: prices of memory.
//
// Note [Priced batches]
// For given prices of phases, time + price x (memory - limit) is additive over operators, so its minimum is
// found by choosing for each operator alone; no plan that fits takes less time. For one plan it is linear in
// the batch size, hence per sample least at one of the ends of an interval of batch sizes: two minima bound
// all plans of an interval. All batch sizes together are one interval at first; the one with the lowest bound
// is divided where its relaxation mixes batches (Note [Regions] in bounds/region_pricing.cpp), until the
// lowest bound is as high as the whole search's or is that of one batch. What then is missing is the gap of
// the relaxation, which the search closes by enumeration and a checker cannot. Batches that are too large for
// any plan have prices at which even the cheapest plan exceeds the bound.
#pragma once

#include "search/planner/searches.hpp"

namespace osdp::search {

// Fills `proof.priced` for the batches of `request`, whose objective and memory are those of the bound, with
// the times of batch `times`.
void price_batches(Searches& searches, const Request& request, int64_t times, Proof& proof);

}  // namespace osdp::search
