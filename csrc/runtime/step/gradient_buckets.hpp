// GradientBuckets: averages the gradients of replicated (NO_SHARD) parameters over the ranks, in place.
//
// Note [Gradient buckets]
// A gradient joins its bucket when it is complete. When all gradients that this graph task produces for the
// bucket are complete, the bucket is all-reduced on the lane: large gradients in place, small ones through
// one flat buffer. The division into messages depends only on sizes, which are equal on all ranks. The
// averaged sum from earlier micro-batches is averaged again with the new gradient; it is equal on all ranks,
// so this does not change it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/lane.hpp"
#include "runtime/step/step_state.hpp"
#include "runtime/store/arrivals.hpp"
#include "runtime/store/precision.hpp"
#include "runtime/store/shard_store.hpp"

namespace osdp::runtime {

class GradientBuckets {
 public:
  // `model`: the model's number, see Runtime.
  GradientBuckets(std::shared_ptr<comm::Lane> lane, std::shared_ptr<comm::Collectives> collectives,
                  const StepState& step, int64_t model)
      : lane_(std::move(lane)), collectives_(std::move(collectives)), step_(step), model_(model) {}

  // Opens buckets for parameters (of one device) that every rank holds in full, or of which it holds NO_SHARD
  // slices: one bucket per combination of dtypes.
  void add(const std::string& name, const std::vector<Parameter*>& params);
  void close_all();  // none of them has a gradient that is still to be averaged
  bool holds(const Parameter& param) const { return item_of(param) != nullptr; }
  // The gradient that this rank keeps of a split weight; zeros where it has none yet.
  at::Tensor& split_gradient(Parameter& param);

  // --- for a parameter that is in a bucket
  // Its gradient is complete for this graph task. Launches its bucket if it was the last one expected; under
  // no_sync the gradient is only marked as changed.
  void arrived(const Parameter& param);
  // Called before its gradient is written again: waits for a reduction in flight. No-op for other parameters.
  void await(const Parameter& param);
  // Under mixed precision: where this backward's gradient is kept until it is averaged by itself. Null if it
  // must be added to the gradient that this rank keeps.
  at::Tensor* averaged_alone(const Parameter& param);
  // The gradient of a NO_SHARD slice of a split weight; the weight may be in no bucket.
  void add_slice_gradient(Parameter& param, int64_t slice, const at::Tensor& gradient);

  // Launches, in order, every bucket with gradients that changed since they were last averaged.
  void flush();
  void wait_all();
  bool launched() const { return !works_.empty(); }  // since the last wait_all()
  // The first of `among` whose gradient this rank has not averaged yet; null: none.
  Parameter* unreduced(const std::vector<const Parameter*>& among) const;
  void forget();  // after an exception: waits for reductions in flight, ignores their errors, and empties the
                  // buckets

 private:
  // A parameter's gradient, or the NO_SHARD rows of a split weight's.
  struct Item {
    Item(Parameter* p, size_t b) : param(p), bucket(b) {}

    Parameter* param;
    size_t bucket;
    bool dirty = false;   // its gradient changed since it was last averaged
    bool queued = false;  // waits in its bucket
    comm::Work in_flight;
    // Under mixed precision: this backward's gradient, which is averaged by itself and then added to the kept
    // one. Not used while a gradient kept under no_sync is still to be averaged. See Note [Mixed precision].
    at::Tensor pending;
    // For a split weight: no gradient was kept before this backward, so its gradient is averaged in place.
    bool first = false;
    bool averages_alone() const { return pending.defined() || !dirty; }

    // The tensor to average; undefined while there is no gradient.
    at::Tensor gradient() const;
  };
  struct Bucket {
    faults::TaskNames names;
    std::vector<faults::TaskNames::Part> parts;  // per item, in the reduction that is being submitted
    std::vector<std::unique_ptr<Item>> items;
    Arrivals arrivals;
  };

  Item* item_of(const Parameter& param) const {
    return param.index() < item_of_.size() ? item_of_[param.index()] : nullptr;
  }
  void open(const std::string& name, const std::vector<Parameter*>& params);
  void launch(Bucket& bucket);
  // The gradients of the bucket that are to be averaged, and their items.
  static std::vector<Averaged> take(Bucket& bucket, std::vector<Item*>& taken);
  comm::Work submit_in_place(const faults::TaskNamePtr& name, const std::vector<Averaged>& averaged);
  comm::Work submit_mixed(const faults::TaskNamePtr& name,
                          std::vector<Averaged> averaged);  // Note [Mixed precision]

  std::shared_ptr<comm::Lane> lane_;
  std::shared_ptr<comm::Collectives> collectives_;
  const StepState& step_;
  int64_t model_;
  std::vector<Bucket> buckets_;
  std::vector<Item*> item_of_;  // by the parameter's index
  std::vector<comm::Work> works_;
};

}  // namespace osdp::runtime
