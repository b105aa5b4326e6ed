#include "search/planner/planner.hpp"

#include <algorithm>

#include "search/planner/objectives.hpp"
#include "search/planner/peak_limit.hpp"
#include "search/planner/searches.hpp"
#include "search/planner/step_positions.hpp"
#include "search/planner/step_proof.hpp"
#include "search/problem/validate.hpp"

namespace osdp::search {

double Answer::throughput(int64_t ranks) const {
  const auto samples = static_cast<double>(ranks) * static_cast<double>(plan.batch.samples());
  return played.step_ps > 0 ? samples / (static_cast<double>(played.step_ps) * 1e-12) : 1e300;
}

namespace {

Model positioned(Model model, const Manner& manner) {
  if (manner.places.size() == model.operators.size()) set_step_positions(model, manner);
  return model;  // else PlanPlayer refuses it
}

Request of_runtime(Request request, const Manner& manner) {
  request.device.stolen = static_cast<double>(manner.stolen_permille) / 1000;
  request.space.separate_reductions = manner.lanes.separate_reductions;
  return request;
}

}  // namespace

Planner::Planner(Model model, Request request, Manner manner)
    : model_(positioned(std::move(model), manner)),
      request_(of_runtime(std::move(request), manner)),
      player_(model_, request_, std::move(manner)) {}

std::vector<Members> Planner::units(const PlainPlan& plan) const {
  validate(model_, plan);
  int64_t transient = 0;
  for (size_t i = 0; i < plan.choices.size(); ++i) {
    const Operator& op = model_.operators[i];
    const PlainPlan::Choice& c = plan.choices[i];
    const Recompute way = op.block < 0 ? Recompute::None : plan.blocks[op.block];
    if (op.tensors.empty()) continue;
    transient = std::max(transient, candidate_of(op, request_.device, request_.space, way, c.mode,
                                                 c.granularity, c.sharded_slices, c.split)
                                        .transient_bytes);
  }
  return player_.units(plan, transient);
}

int64_t Planner::largest_peak(const PlainPlan& plan, int64_t peak_bytes) const {
  if (request_.paper()) return peak_bytes;
  return player_.largest_peak(player_.step(plan, units(plan)));
}

Request Planner::request(std::optional<double> exposed) const {
  Request request = request_;
  if (exposed) request.device.exposed = *exposed;
  return request;
}

Answer Planner::search(const Wish& wish, const Interrupted& interrupted) const {
  Searches searches(*this, wish, interrupted);
  switch (wish.objective) {
    case Objective::Memory: {
      Answer least = least_memory(searches);
      Wish at = wish;
      at.limit_bytes = least.limit_bytes;
      if (least.step_bound_s_per_sample > 0)
        least.step_bound_s_per_sample = step_bound_s_per_sample(at, interrupted);
      return least;
    }
    case Objective::Batch:
      return searches.best_plan(wish.limit_bytes, {largest_batch(searches)});
    case Objective::Throughput:
      break;
  }
  return searches.best_plan(wish.limit_bytes, wish.batches);
}

double Planner::step_bound_s_per_sample(const Wish& wish, const Interrupted& interrupted) const {
  if (request_.paper() || request_.device.ranks == 1) return 0;
  Searches searches(*this, wish, interrupted);
  const Request problem = searches.request(wish.limit_bytes, wish.batches);
  StepProver prover(searches, problem, PeakLimit(wish.limit_bytes).most_bytes(), wish.gap);
  if (!prover.prove()) return 0;
  for (int n = 0; n < StepProver::kMostRanges && prover.sharpen(); ++n) continue;
  return prover.lower_bound_s_per_sample();
}

std::vector<Answer> Planner::frontier(const Wish& wish, const std::vector<int64_t>& limits,
                                      const Interrupted& interrupted) const {
  std::vector<Answer> points;
  Wish at = wish;
  for (int64_t limit : limits) {
    at.limit_bytes = limit;
    Answer found = search(at, interrupted);
    if (!found.feasible) continue;
    if (!points.empty() && points.back().throughput(1) >= found.throughput(1)) {
      const double bound = found.step_bound_s_per_sample;  // of this limit
      found = points.back();
      found.step_bound_s_per_sample = bound;
    }
    found.limit_bytes = limit;
    points.push_back(std::move(found));
  }
  return points;
}

}  // namespace osdp::search
