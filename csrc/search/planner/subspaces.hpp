// Smaller search spaces, for limits at which no plan was found in the whole one.
//
// Note [What a larger space reserves]
// The sum that a search compares with its limit includes room for averaging the gradients of the largest
// operator that may be replicated, and the plan with the smallest sum need not have the smallest peak of its
// own. So the whole space may have no plan under a limit at which a part of it has: without replication,
// without parameters that are kept gathered either, without slices, or without several of these. These are
// searched then; what is a plan of a part is one of the whole.
#pragma once

#include <vector>

#include "search/planner/planner.hpp"

namespace osdp::search {

// The parts of a request's space that are searched; none of them is the whole.
std::vector<Request> subspaces(const Request& request);

// The answer for a part as one for the whole space: its sums, without a proof of the objective.
Answer in_whole_space(const Planner& planner, const Request& request, const Answer& part);

}  // namespace osdp::search
