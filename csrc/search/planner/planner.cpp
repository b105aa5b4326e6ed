#include "search/planner/planner.hpp"

#include <algorithm>
#include <limits>

#include "search/planner/additive_search.hpp"
#include "search/planner/least_peak.hpp"
#include "search/planner/objectives.hpp"
#include "search/planner/peak_limit.hpp"
#include "search/planner/priced_batches.hpp"
#include "search/planner/step_positions.hpp"
#include "search/planner/step_proof.hpp"
#include "search/problem/validate.hpp"

namespace osdp::search {

double Answer::throughput(int64_t ranks) const {
  const auto samples = static_cast<double>(ranks) * static_cast<double>(plan.batch.samples());
  return played.step_ps > 0 ? samples / (static_cast<double>(played.step_ps) * 1e-12) : 1e300;
}

int64_t Answer::step_bound_ps() const {
  if (proof.attained) return played.step_ps;
  const auto samples = static_cast<double>(plan.batch.samples());
  const auto bound = static_cast<int64_t>(proof.lower_bound_s_per_sample * 1e12 * samples);
  return std::clamp<int64_t>(bound, 0, played.step_ps);
}

namespace {

std::function<void(Model&)> positioned(const Manner& manner, const Request& request) {
  return [places = manner, blocks = decides_blocks(request)](Model& model) {
    if (places.places.size() == model.operators.size()) set_step_positions(model, places, blocks);
  };  // else PlanPlayer refuses it
}

Request of_runtime(Request request, const Manner& manner) {
  request.device.stolen = static_cast<double>(manner.stolen_permille) / 1000;
  request.device.delay = manner.delay;
  request.space.separate_reductions = manner.lanes.separate_reductions;
  request.space.streams = manner.lanes.enqueue;
  return request;
}

}  // namespace

Planner::Planner(Model model, Request request, Manner manner, ModelAt at)
    : model_(std::move(model), std::move(at), positioned(manner, request)),
      request_(of_runtime(std::move(request), manner)),
      player_(model_, request_, std::move(manner)) {}

ModelAt Planner::times() const {
  if (!times_vary()) return {};
  return [this](int64_t batch) { return model(batch); };
}

std::vector<Members> Planner::units(const PlainPlan& plan) const {
  validate(model(), plan);
  int64_t transient = 0;
  for (size_t i = 0; i < plan.choices.size(); ++i) {
    const Operator& op = model().operators[i];
    const PlainPlan::Choice& c = plan.choices[i];
    const Recompute way = op.block < 0 ? Recompute::None : plan.blocks[op.block];
    if (op.tensors.empty()) continue;
    transient = std::max(transient, candidate_of(op, request_.device, request_.space, way, c.mode,
                                                 c.granularity, c.sharded_slices, c.split)
                                        .transient_bytes);
  }
  return player_.units(plan, transient);
}

PlayedStep Planner::play(const PlainPlan& plan) const {
  if (!request_.paper()) return player_.play(player_.step(plan, units(plan)));
  PlanEvaluator own(request_, player_, 0);
  PlayedStep paper;
  paper.step_ps = own.objective_ps(in_whole_space(own, plan));
  return paper;
}

int64_t Planner::largest_peak(const PlainPlan& plan) const {
  if (!request_.paper()) return player_.largest_peak(player_.step(plan, units(plan)));
  PlanEvaluator own(request_, player_, 0);
  return own.peak_bytes(in_whole_space(own, plan));
}

Answer Planner::search(const Wish& wish, const Interrupted& interrupted) const {
  Searches searches(*this, wish, interrupted);
  std::vector<Batch> batches = wish.batches;
  if (wish.objective == Objective::Batch) batches = {largest_batch(searches)};
  if (wish.objective != Objective::Memory) {
    Answer found = searches.best_plan(wish.limit_bytes, batches);
    price(searches, batches, found);
    found.interrupted = interrupted && interrupted();
    found.out_of_time = searches.left_s() <= 0;
    return found;
  }
  Answer least = least_memory(searches);
  Wish at = wish;
  at.limit_bytes = least.limit_bytes;
  if (least.feasible && !searches.limit_is_of_sum())
    least.proof = prove(at, interrupted, least.plan.batch.size);
  price(searches, batches, least);
  least.interrupted = interrupted && interrupted();
  return least;
}

void Planner::price(Searches& searches, const std::vector<Batch>& batches, Answer& found) const {
  if (!found.feasible) return;
  Request problem = searches.request(found.limit_bytes, batches);
  if (!request_.paper()) {
    problem = bound_request(
        problem, found.proof.shares,
        request_.moves_nothing() ? found.limit_bytes : PeakLimit(found.limit_bytes).most_bytes());
  }
  price_batches(searches, problem, found.plan.batch.size, found.proof);
}

Proof Planner::prove(const Wish& wish, const Interrupted& interrupted, int64_t times, bool thorough) const {
  Searches searches(*this, wish, interrupted);
  const Request problem = searches.request(wish.limit_bytes, wish.batches);
  if (searches.limit_is_of_sum()) return additive_optimum(searches, problem).proof;
  StepProver prover(searches, problem, PeakLimit(wish.limit_bytes).most_bytes(), wish.gap,
                    thorough ? StepProver::kWork : StepProver::kPartWork);
  if (!prover.prove()) return {};
  while (prover.sharpen(std::numeric_limits<double>::infinity())) continue;
  return prover.proof(times);
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
      Proof proof = std::move(found.proof);  // of this limit
      found = points.back();
      found.proof = std::move(proof), found.proof.attained = false;
    }
    found.limit_bytes = limit;
    points.push_back(std::move(found));
  }
  return points;
}

}  // namespace osdp::search
