#include "search/planner/additive_search.hpp"

#include "search/heuristics/plan_evaluator.hpp"

namespace osdp::search {

Answer additive_optimum(Searches& searches, Request problem, double gap) {
  problem.find_smallest = true;
  const Schedule found = searches.run(problem, gap);
  Answer a;
  a.limit_bytes = problem.limit_bytes, a.smallest_limit_bytes = found.smallest_limit_bytes;
  if (!found.feasible) return a;
  PlanEvaluator own(problem, searches.planner().player(), problem.limit_bytes);
  const IndexedPlan plan = indexed_plan(found_of(found), problem.space);
  a.feasible = true, a.plan = own.plain(plan), a.peak_bytes = own.largest_peak_bytes(plan);
  if (problem.paper()) {
    a.played.step_ps = found.step_ps;
  } else {
    a.played = own.play(plan);
  }
  a.proof = {found.lower_bound_s_per_sample, found.optimal, {},
             found.lower_bound_s_per_sample, found.phases,  {}};
  return a;
}

}  // namespace osdp::search
