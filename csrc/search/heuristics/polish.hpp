// Local search on the simulated step: improves plans of the searches until a plan with a shorter simulated
// step is found.
//
// Note [Polish]
// The objective is a sum over operators; a step's critical path is not, and neighbours of one mode share a
// latency, so several simultaneous changes may be needed before the simulated step gets shorter. The best
// plans by several objectives are changed at random (heuristics/neighbours.hpp): first all blocks in the same
// way, then some of them. Memory is that of the plan's own step, not the objective's sum (Note [What
// fits] in planner/peak_limit.hpp): a plan over its limit is repaired where the objective loses least, or
// at random, by as many bytes of the sum as its own peak is over. Nothing is simulated whose step bound is
// above the current plan's step. A change is kept if the simulated step is no slower. After many changes
// without progress the search restarts from another plan with a few changes, until `plays` steps were
// simulated; after each gain as many again, kMostTurns times as many at most. That is a count, not a time,
// and the random sequence is fixed, so the result is deterministic. Every returned plan fits; nothing is
// proven about its simulated time.
#pragma once

#include <functional>

#include "search/branch/runners_up.hpp"
#include "search/heuristics/plan_evaluator.hpp"

namespace osdp::search {

inline constexpr int64_t kMostTurns = 3;

struct Polished {
  IndexedPlan plan;
  int64_t played_ps = 0;  // simulated time of a step
  size_t seed = 0;        // index of the seed that it was derived from
};

// Bytes by which the memory of a plan is below what it may be; negative if it is over. Expensive to evaluate.
using Spare = std::function<int64_t(const IndexedPlan&)>;

// Ties go to the earlier plan. At least the first seed is simulated, and all of them if `plays` suffices.
// Ends early with a plan of at most `enough_ps` per sample, or once `over()`. Throws InvalidProblem if none
// of the seeds fits, or if one is not a plan of this problem.
Polished polish(PlanEvaluator& evaluator, const std::vector<IndexedPlan>& seeds, int64_t plays,
                const Spare& spare, double enough_ps = 0, const std::function<bool()>& over = {});

}  // namespace osdp::search
