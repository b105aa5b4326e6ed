#include "search/planner/planner.hpp"

#include "search/planner/objectives.hpp"
#include "search/planner/searches.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {

double Answer::throughput(int64_t ranks) const {
  const auto samples = static_cast<double>(ranks) * static_cast<double>(plan.batch.samples());
  return played_ps > 0 ? samples / (static_cast<double>(played_ps) * 1e-12) : 1e300;
}

Planner::Planner(Model model, Request request, Manner manner)
    : model_(std::move(model)), request_(std::move(request)), manner_(std::move(manner)) {
  if (manner_.places.size() != model_.operators.size())
    throw InvalidProblem("the places of " + std::to_string(manner_.places.size()) + " operators for " +
                         std::to_string(model_.operators.size()));
}

Request Planner::request(std::optional<double> exposed) const {
  Request request = request_;
  if (exposed) request.device.exposed = *exposed;
  return request;
}

Answer Planner::search(const Wish& wish, const Interrupted& interrupted) const {
  Searches searches(*this, wish, interrupted);
  switch (wish.objective) {
    case Objective::Memory:
      return least_memory(searches);
    case Objective::Batch:
      return searches.best_plan(wish.limit_bytes, {largest_batch(searches)}, wish.find_smallest);
    case Objective::Throughput:
      break;
  }
  return searches.best_plan(wish.limit_bytes, wish.batches, wish.find_smallest);
}

std::vector<Answer> Planner::frontier(const Wish& wish, const std::vector<int64_t>& limits,
                                      const Interrupted& interrupted) const {
  std::vector<Answer> points;
  Wish at = wish;
  for (int64_t limit : limits) {
    at.limit_bytes = limit;
    Answer found = search(at, interrupted);
    if (!found.feasible) continue;
    if (!points.empty() && points.back().throughput(1) >= found.throughput(1)) found = points.back();
    found.limit_bytes = limit;
    points.push_back(std::move(found));
  }
  return points;
}

std::vector<Members> Planner::units(const PlainPlan& plan, int64_t transient_bytes) const {
  return units_of(request_, manner_, plan, transient_bytes);
}

PlayedStep Planner::play(const PlainPlan& plan, const std::vector<Members>& units) const {
  return play_plan(model_, request_, manner_, plan, units);
}

Timeline Planner::timeline(const PlainPlan& plan, const std::vector<Members>& units) const {
  return timeline_of(model_, request_, manner_, plan, units);
}

}  // namespace osdp::search
