// A model whose operators' times are lines in the batch that may differ from batch to batch.
//
// Note [Lines of time]
// Times of kernels are convex in the batch and not linear: each is the largest of several lines. The search
// takes one line of each operator, that through the times at some batch and the next one. It is exact there
// and above the times nowhere, so what is proven with the lines at one batch holds for all batches. Bounds of
// a range of batches are proven with lines at a batch in it, and a plan is simulated with those at its own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "search/problem/model.hpp"

namespace osdp::search {

// The times of a model's operators at a batch: a model of which nothing else is read.
using ModelAt = std::function<Model(int64_t batch)>;

class TimedModel {
 public:
  // `own`: the model that is given to whom no batch matters. Without `at` there are no other times.
  // `prepare` is applied to each model.
  explicit TimedModel(Model own, ModelAt at = {}, std::function<void(Model&)> prepare = {});

  const Model& own() const { return own_; }
  bool varies() const { return at_ != nullptr; }
  // Made at the first call for a batch, and valid as long as this object; any thread may call it. 0: its own.
  // Throws InvalidProblem if `at` returns another number of operators.
  const Model& at(int64_t batch) const;

 private:
  const ModelAt at_;
  const std::function<void(Model&)> prepare_;
  const Model own_;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::unique_ptr<const Model>> made_;
};

}  // namespace osdp::search
