#include "search/planner/subspaces.hpp"

#include <algorithm>

#include "search/heuristics/rehearsal.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

Candidacy candidacy(const Rehearsal& rehearsal, const PlainPlan& plan) {
  Candidacy found{plan.batch, {std::vector<int>(plan.choices.size(), -1), plan.blocks}};
  for (size_t i = 0; i < plan.choices.size(); ++i) {
    const int op = static_cast<int>(i);
    const auto& list = rehearsal.candidates(op, rehearsal.way_of(op, found.decision));
    const auto at = std::find_if(list.begin(), list.end(), [&](const Candidate& c) {
      return PlainPlan::Choice{c.mode, c.granularity, c.sharded_slices, c.split} == plan.choices[i];
    });
    if (at != list.end()) found.decision.choices[i] = static_cast<int>(at - list.begin());
  }
  rehearsal.check(found);
  return found;
}

}  // namespace

std::vector<Request> subspaces(const Request& request) {
  std::vector<Request> parts;
  const std::vector<Mode>& modes = request.space.modes;
  const auto has = [&](const auto& which) { return std::any_of(modes.begin(), modes.end(), which); };
  const auto whole = [](Mode m) { return !traits(m).sharded; };
  const auto kept = [](Mode m) { return traits(m).kept; };
  const bool sliced = !request.space.granularities.empty();
  for (const bool slices : {true, false}) {
    if (slices && !sliced) continue;
    for (int without = 0; without < 3; ++without) {  // nothing; replication; replication and what is kept
      if (without == 0 && (slices || !sliced)) continue;  // the whole space
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

Answer in_whole_space(const Planner& planner, const Request& request, const Answer& part) {
  Rehearsal rehearsal(request, planner.player());
  const Candidacy plan = candidacy(rehearsal, part.plan);
  Answer a;
  a.feasible = true;
  a.plan = part.plan, a.played = part.played;
  a.step_ps = rehearsal.objective_ps(plan), a.peak_bytes = rehearsal.peak_bytes(plan);
  a.largest_peak_bytes = part.largest_peak_bytes;
  a.exposed = request.device.exposed;
  a.limit_bytes = request.limit_bytes;
  a.sum_limit_bytes = std::max(request.limit_bytes, a.peak_bytes);
  return a;
}

}  // namespace osdp::search
