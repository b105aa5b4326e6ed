// The plan with the smallest largest peak that is known, which decides the smallest limit.
//
// Note [The smallest limit]
// Peaks are not sums over operators, so the plan with the smallest peak is not searched for itself: it is the
// best of those with the smallest sum in the whole space and in parts of it. The sum includes room for
// averaging the gradients of the largest operator that may be replicated, and for the largest transient, so
// in the whole space its least plan need not be that of a part: without replication, without parameters that
// are kept gathered either, without slices, or without several of these. What is a plan of a part is one of
// the whole.
#pragma once

#include "search/planner/searches.hpp"

namespace osdp::search {

// The decision, in the lists of `evaluator`, for a plan of a part.
IndexedPlan in_whole_space(const PlanEvaluator& evaluator, const PlainPlan& plan);

// Of the problem's batches; with no batches given, of one sample.
LeastPeak least_peak(Searches& searches, const Request& problem);

}  // namespace osdp::search
