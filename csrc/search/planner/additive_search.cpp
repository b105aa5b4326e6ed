#include "search/planner/additive_search.hpp"

#include <algorithm>
#include <map>

#include "search/heuristics/plan_evaluator.hpp"

namespace osdp::search {
namespace {

constexpr size_t kMostTimes = 4;  // batches whose times are tried

Answer with_times(Searches& searches, const Request& problem, int64_t times, double gap) {
  const Schedule found = searches.run(problem, times, gap);
  Answer a;
  a.limit_bytes = problem.limit_bytes, a.smallest_limit_bytes = found.smallest_limit_bytes;
  if (!found.feasible) return a;
  PlanEvaluator own(problem, searches.planner().player(), problem.limit_bytes, times);
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

}  // namespace

// Where times vary, those of the batch that was found come next (Note [Lines of time] in
// problem/timed_model.hpp), until that is the plan's own. All of them bound all plans.
Answer additive_optimum(Searches& searches, Request problem, double gap) {
  problem.find_smallest = true;
  if (!searches.planner().times_vary()) return with_times(searches, problem, 0, gap);
  std::map<int64_t, Answer> tried;
  Answer best;
  double bound = 0;
  int64_t times = problem.batches.empty() ? 1 : problem.batches.front().size;
  const auto try_times = [&](int64_t batch) -> const Answer& {
    const Answer& a = tried.try_emplace(batch, with_times(searches, problem, batch, gap)).first->second;
    bound = std::max(bound, a.proof.lower_bound_s_per_sample);
    if (a.feasible &&
        (!best.feasible || faster(a.played.step_ps, a.plan.batch, best.played.step_ps, best.plan.batch)))
      best = a;
    return a;
  };
  while (tried.size() < kMostTimes && !tried.contains(times)) {
    const Answer& a = try_times(times);
    if (!a.feasible) return a;
    times = a.plan.batch.size;
  }
  const int64_t batch = best.plan.batch.size;
  const Proof of_batch = tried.contains(batch) ? tried.at(batch).proof : try_times(batch).proof;
  const bool attained = of_batch.attained && tried.at(batch).plan.batch == best.plan.batch &&
                        tried.at(batch).played.step_ps == best.played.step_ps;
  best.proof = of_batch;
  best.proof.attained = attained, best.proof.lower_bound_s_per_sample = bound;
  return best;
}

}  // namespace osdp::search
