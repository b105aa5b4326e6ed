// From the plan with the fastest simulated step to the answer, with the proof of an objective.
// See Note [Which objective is proven] in planner/planner.hpp.
#pragma once

#include "search/planner/searches.hpp"
#include "search/planner/whole_limit.hpp"

namespace osdp::search {

// The plan with the fastest simulated step among those near the objective's optimum whose step keeps `limit`.
// The limit of `problem` is of the sum; it is raised as long as `limit` allows. If no plan is found whose
// step keeps `limit`, the plan returned keeps the problem's limit only.
Answer select_plan(Searches& searches, const Request& problem, const WholeLimit& limit);

// The best plan by the objective, with the problem's weight of communication, likewise.
Answer optimum(Searches& searches, const Request& problem, const WholeLimit& limit);

}  // namespace osdp::search
