#include "search/planner/plan_lines.hpp"

#include <utility>

#include "search/problem/problem.hpp"
#include "search/problem/step_bound.hpp"

namespace osdp::search {

PlanLines::PlanLines(const Model& model, const EquivalenceClasses& classes, std::vector<Request> requests)
    : model_(model), classes_(classes), requests_(std::move(requests)) {
  for (const Request& r : requests_) compute_ps_.push_back(step_bound_compute(model, r));
}

const std::vector<int64_t>& PlanLines::option_ps(int op, Recompute way, const Candidate& c) {
  std::vector<int64_t>& ps = option_ps_[&c];
  if (ps.empty())
    for (const Request& r : requests_)
      ps.push_back(option_bound_ps(model_.operators[op], r.device, r.space, way)(c));
  return ps;
}

std::vector<double> PlanLines::of(const Found& plan) {
  const auto [size, accumulation] = plan.batch;
  int128 once = 0, recomputed = 0;
  std::vector<int128> each(requests_.size());  // micro-batch
  for (size_t k = 0; k < each.size(); ++k) each[k] = compute_ps_[k](size);
  for (const EquivalenceClass& cls : classes_.classes)
    for (const int b : cls.blocks)
      if (plan.decision.ways[b] != Recompute::None) recomputed += cls.recompute_ps(size);
  for_each_choice(classes_, plan.decision, [&](int i, const Candidate& c) {
    const int block = model_.operators[i].block;
    const Recompute way = block < 0 ? Recompute::None : plan.decision.ways[block];
    const std::vector<int64_t>& ps = option_ps(i, way, c);
    for (size_t k = 0; k < each.size(); ++k) each[k] += ps[k];
    once += c.optimizer_ps;
  });
  std::vector<double> values;
  for (size_t k = 0; k < each.size(); ++k) {
    each[k] += recomputed * requests_[k].space.shares->backward / StepShares::kWhole;
    values.push_back(static_cast<double>(each[k] * accumulation + once) /
                     static_cast<double>(plan.batch.samples()));
  }
  return values;
}

}  // namespace osdp::search
