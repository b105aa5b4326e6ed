#include "search/planner/least_peak.hpp"

#include <algorithm>
#include <functional>

#include "search/heuristics/neighbours.hpp"

namespace osdp::search {
namespace {

constexpr int kMostTransients = 3;  // bounds of the largest transient that are tried
constexpr double kNear = 1.25;      // of the smallest peak so far: parts beyond are not searched further
// Consecutive changes without a smaller peak before a part's search ends: fewer of larger models, and more of
// those of a few operators, which take no time.
constexpr size_t kFewestStale = 40, kMostStale = 150, kOperators = 15000, kOperatorsOfFew = 5000;

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

// The best of the plans with the smallest sum in a part of the space: each time without the options whose
// transient is as large as the largest of the plan before.
LeastPeak least_of_sums(Searches& searches, Request part, PlanEvaluator& own) {
  LeastPeak least;
  for (int n = 0; n < kMostTransients && !(searches.over() && least.found); ++n) {
    part.limit_bytes = 1, part.find_smallest = true;
    part.limit_bytes = searches.run(part, 0).smallest_limit_bytes;
    if (part.limit_bytes == 0) break;
    const Schedule found = searches.run(part, 0, kAnyPlan);
    if (!found.feasible) break;
    PlanEvaluator narrowed(part, searches.planner().player(), 0);
    const IndexedPlan plan = in_whole_space(own, narrowed.plain(indexed_plan(found_of(found), part.space)));
    const int64_t peak = own.largest_peak_bytes(plan);
    if (!least.found || peak < least.largest_peak_bytes) least = {true, plan, peak};
    const int64_t transient = largest_transient(narrowed.classes(), found.decision);
    if (transient == 0 || transient > part.space.most_transient_bytes) break;
    part.space.most_transient_bytes = transient - 1;
  }
  return least;
}

// Random changes, kept if the largest peak is smaller.
void descend(PlanEvaluator& evaluator, LeastPeak& least, const std::function<bool()>& over) {
  Neighbours neighbours(evaluator);
  const size_t operators = std::max<size_t>(1, evaluator.model().operators.size());
  const auto stale_at = static_cast<int>(
      std::max(std::clamp(kOperators / operators, kFewestStale, kMostStale), kOperatorsOfFew / operators));
  for (int n = 0, stale = 0; stale < stale_at && !over(); ++n, ++stale) {
    IndexedPlan next = least.plan;
    if (n % 3 == 0) {
      if (!neighbours.shrink(next)) continue;
    } else {
      neighbours.change(next, n % 3 == 1);
    }
    if (next == least.plan) continue;
    const int64_t peak = evaluator.largest_peak_bytes(next);
    if (peak < least.largest_peak_bytes)
      least.plan = std::move(next), least.largest_peak_bytes = peak, stale = 0;
  }
}

}  // namespace

IndexedPlan in_whole_space(const PlanEvaluator& evaluator, const PlainPlan& plan) {
  IndexedPlan found{plan.batch, {std::vector<int>(plan.choices.size(), -1), plan.blocks}, plan.prefetch};
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
  const auto over = [&] { return searches.over(); };
  LeastPeak least;
  Request smallest = problem;
  smallest.space.prefetches.resize(1);  // what is gathered ahead takes memory
  if (smallest.batches.empty()) smallest.batches = {{1, 1}};
  for (const Request& part : parts_of(smallest)) {
    if (over() && least.found) break;
    PlanEvaluator own(part, player, 0);
    LeastPeak of_part = least_of_sums(searches, part, own);
    if (!of_part.found) continue;
    if (!least.found || of_part.largest_peak_bytes < kNear * least.largest_peak_bytes)
      descend(own, of_part, over);
    if (least.found && of_part.largest_peak_bytes >= least.largest_peak_bytes) continue;
    least = {true, in_whole_space(all, own.plain(of_part.plan)), of_part.largest_peak_bytes};
  }
  return least;
}

}  // namespace osdp::search
