// The plan with the smallest largest peak that is known, which decides the smallest limit.
//
// Note [The smallest limit]
// Peaks are not sums over operators. The plan of the smallest sum, which exact search finds, has a peak above
// its sum: beside a phase, the next unit may be gathered and the last gradient be on its way. So local search
// lowers its peak by random changes. A larger space must not need more memory than a part of it, which may
// have the better plan of the smallest sum: the same is done in parts of the space (without replication,
// without parameters that are kept gathered either, without slices), and with options of large transients
// left out. What is a plan of a part is one of the whole.
#pragma once

#include "search/planner/searches.hpp"

namespace osdp::search {

// The decision, in the lists of `evaluator`, for a plan of a part.
IndexedPlan in_whole_space(const PlanEvaluator& evaluator, const PlainPlan& plan);

// Of the problem's batches; with no batches given, of one sample.
LeastPeak least_peak(Searches& searches, const Request& problem);

}  // namespace osdp::search
