#include "search/problem/timed_model.hpp"

#include <string>
#include <utility>

#include "search/problem/problem.hpp"
#include "search/problem/validate.hpp"

namespace osdp::search {
namespace {

Model prepared(Model model, const std::function<void(Model&)>& prepare) {
  if (prepare) prepare(model);
  return model;
}

}  // namespace

TimedModel::TimedModel(Model own, ModelAt at, std::function<void(Model&)> prepare)
    : at_(std::move(at)), prepare_(std::move(prepare)), own_(prepared(std::move(own), prepare_)) {}

const Model& TimedModel::at(int64_t batch) const {
  if (!at_ || batch <= 0) return own_;
  {
    const std::lock_guard lock(mutex_);
    if (const auto made = made_.find(batch); made != made_.end()) return *made->second;
  }
  const Model there = at_(batch);
  if (there.operators.size() != own_.operators.size())
    throw InvalidProblem("the times of batch " + std::to_string(batch) + " are of " +
                         std::to_string(there.operators.size()) + " operators, the model has " +
                         std::to_string(own_.operators.size()));
  Model model = own_;
  for (size_t i = 0; i < model.operators.size(); ++i) {
    Operator& op = model.operators[i];
    const Operator& then = there.operators[i];
    op.compute_s_per_sample = then.compute_s_per_sample, op.compute_s_fixed = then.compute_s_fixed;
    op.recompute_s_per_sample = then.recompute_s_per_sample, op.recompute_s_fixed = then.recompute_s_fixed;
    op.slices_s = then.slices_s;
  }
  validate(model);
  auto made = std::make_unique<const Model>(prepared(std::move(model), prepare_));
  const std::lock_guard lock(mutex_);  // not while `at_` runs, which may wait for whoever calls this
  return *made_.try_emplace(batch, std::move(made)).first->second;
}

}  // namespace osdp::search
