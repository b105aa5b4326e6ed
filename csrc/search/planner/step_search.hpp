// The search for the plan whose simulated step is fastest, with a proof of how fast any can be.
//
// Note [Search by the bound]
// The minimum of the step bound is a lower bound for all plans (planner/step_proof.hpp), and the plans that
// attain it are nearly the fastest in simulation. They are simulated first. While the fastest plan so far is
// farther above the bound than the gap that was asked for, plans are divided by what they gather ahead, which
// raises the bound (Note [Ranges of the budget] in planner/step_proof.hpp); the minima for these ranges are
// more plans. Before that, the same bound gives plans of the space that only shards, in a fraction of the
// time; they are often faster, and no range needs a bound above what is faster than the fastest plan. Then
// the fastest plans are improved by local search on the simulator (heuristics/polish.hpp); where the gap is
// still large, so are those of the space that only shards, and of a long model those without slices, without
// recomputation, and with all of it.
#pragma once

#include "search/planner/peak_limit.hpp"
#include "search/planner/searches.hpp"

namespace osdp::search {

// The plan with the fastest simulated step that was found among those that keep `limit`, of the problem's
// batches, with a bound but without prices.
Answer fastest_step(Searches& searches, const Request& problem, const PeakLimit& limit);

// Some plan that fits, where those that attain the first bound of all plans do.
Answer any_step(Searches& searches, const Request& problem, const PeakLimit& limit);

}  // namespace osdp::search
