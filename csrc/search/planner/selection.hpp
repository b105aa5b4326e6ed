// From the plan with the fastest simulated step to the answer, with the proof of an objective.
// See Note [Which objective is proven] in planner/planner.hpp.
#pragma once

#include "search/planner/peak_limit.hpp"
#include "search/planner/searches.hpp"

namespace osdp::search {

// The plan with the fastest simulated step that was found among those that keep `limit`. With a limit of the
// sum, and for a wish that simulates nothing, the best plan by the objective whose sum keeps the problem's
// limit.
Answer select_plan(Searches& searches, const Request& problem, const PeakLimit& limit);

}  // namespace osdp::search
