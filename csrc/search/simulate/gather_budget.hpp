// How much memory a plan's units may take while they are gathered.
//
// Note [Budget for gathering]
// Units are gathered ahead of their use as long as they fit, with the unit in use, into Step::gather_bytes.
// That memory is full in almost every phase, whatever operator binds: one large unit (an embedding) would let
// small ones fill twice its size. Gathering ahead further than computation lasts saves no time. So the budget
// is what the limit leaves beside everything else: the largest one with which the step's largest peak keeps
// the limit, from nothing ahead of the unit in use to the memory of 1 + `prefetch` units of the largest size.
// Where a transfer delays computation beside it by more than it takes alone (stolen computation above 1, as
// on hosts whose cores do both), gathering ahead costs time: there a step that gathers nothing ahead is
// played too, and the faster of the two budgets is taken.
#pragma once

#include <cstdint>

#include "search/simulate/step.hpp"

namespace osdp::search {

// Sets step.gather_bytes for the limit `most_bytes`; returns the largest peak with it, which exceeds the
// limit if that of the least budget does. Throws InvalidProblem as `play` does.
int64_t fit_gather_bytes(Step& step, int64_t most_bytes);

}  // namespace osdp::search
