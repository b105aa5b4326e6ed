#include "search/planner/least_peak.hpp"

#include <algorithm>

namespace osdp::search {
namespace {

// The request for a part of the space, the whole of it first.
std::vector<Request> parts_of(const Request& request) {
  std::vector<Request> parts;
  const std::vector<Mode>& modes = request.space.modes;
  const auto has = [&](const auto& which) { return std::any_of(modes.begin(), modes.end(), which); };
  const auto whole = [](Mode m) { return !traits(m).sharded; };
  const auto kept = [](Mode m) { return traits(m).kept; };
  for (const bool slices : {true, false}) {
    if (!slices && request.space.granularities.empty()) continue;
    for (int without = 0; without < 3; ++without) {  // nothing; replication; replication and what is kept
      if ((without == 1 && !has(whole)) || (without == 2 && !has(kept))) continue;
      Request part = request;
      if (!slices) part.space.granularities.clear();
      if (without > 0) std::erase_if(part.space.modes, whole);
      if (without > 1) std::erase_if(part.space.modes, kept);
      if (!part.space.modes.empty()) parts.push_back(std::move(part));
    }
  }
  return parts;
}

}  // namespace

IndexedPlan in_whole_space(const PlanEvaluator& evaluator, const PlainPlan& plan) {
  IndexedPlan found{plan.batch, {std::vector<int>(plan.choices.size(), -1), plan.blocks}};
  for (size_t i = 0; i < plan.choices.size(); ++i) {
    const int op = static_cast<int>(i);
    const auto& list = evaluator.candidates(op, evaluator.way_of(op, found.decision));
    const auto at = std::find_if(list.begin(), list.end(), [&](const Candidate& c) {
      return PlainPlan::Choice{c.mode, c.granularity, c.sharded_slices, c.split} == plan.choices[i];
    });
    if (at != list.end()) found.decision.choices[i] = static_cast<int>(at - list.begin());
  }
  evaluator.check(found);
  return found;
}

LeastPeak least_peak(Searches& searches, const Request& problem) {
  const PlanPlayer& player = searches.planner().player();
  PlanEvaluator all(problem, player, 0);
  LeastPeak least;
  Request smallest = searches.with_least_reserve(problem);
  if (smallest.batches.empty()) smallest.batches = {{1, 1}};
  for (Request part : parts_of(smallest)) {
    if (searches.over() && least.found) break;
    part.limit_bytes = 1, part.find_smallest = true;
    part.limit_bytes = searches.run(part).smallest_limit_bytes;
    if (part.limit_bytes == 0) continue;
    const Schedule found = searches.run(part);
    if (!found.feasible) continue;
    PlanEvaluator own(part, player, 0);
    const IndexedPlan plan = in_whole_space(all, own.plain(indexed_plan(found_of(found))));
    const int64_t peak = all.largest_peak_bytes(plan);
    if (!least.found || peak < least.largest_peak_bytes) least = {true, plan, peak};
  }
  return least;
}

}  // namespace osdp::search
