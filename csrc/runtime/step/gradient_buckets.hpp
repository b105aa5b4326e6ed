// GradientBuckets: gradients of what every rank holds in full (NO_SHARD), averaged over the ranks in place.
//
// Note [Gradient buckets]
// A gradient joins its bucket when it is complete; when all that this graph task will make are there, the
// bucket is all-reduced on the lane: large gradients where they lie, small ones through one flat buffer. What
// travels in which message follows from sizes alone, which ranks have in common. What
// is already averaged from earlier micro-batches is averaged again with it: it is equal on all ranks, so that
// changes nothing.
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
#include "runtime/store/shard_store.hpp"

namespace osdp::runtime {

class GradientBuckets {
 public:
  // `model`: its number, see Runtime.
  GradientBuckets(std::shared_ptr<Lane> lane, std::shared_ptr<Collectives> collectives, const StepState& step,
                  int64_t model)
      : lane_(std::move(lane)), collectives_(std::move(collectives)), step_(step), model_(model) {}

  // Opens buckets for parameters (of one device) that every rank holds in full, or the NO_SHARD slices of:
  // one for those that are averaged alike.
  void add(const std::string& name, const std::vector<Parameter*>& params);
  bool holds(const Parameter& param) const { return item_of(param) != nullptr; }
  // The gradient that this rank keeps of a split weight; zeros where it has none yet.
  at::Tensor& split_gradient(Parameter& param);

  // --- a parameter that is in a bucket
  // Its gradient is complete for this graph task. Launches its bucket if all of the task's are there; under
  // no_sync it is only noted that it changed.
  void arrived(const Parameter& param);
  // Before its gradient is written again: a reduction under way must end first. Of others: nothing.
  void await(const Parameter& param);
  // Under mixed precision: where this backward's gradient waits, to be averaged by itself. Null where it is
  // to be added to what this rank keeps.
  at::Tensor* averaged_alone(const Parameter& param);
  // Of a split weight's NO_SHARD slice, in one bucket or in none.
  void add_slice_gradient(Parameter& param, int64_t slice, const at::Tensor& gradient);

  // Launches every bucket that has gradients left which changed since they were last averaged, in order.
  void flush();
  void wait_all();
  bool launched() const { return !works_.empty(); }  // since the last wait_all()
  // A parameter whose gradient this rank has kept for itself; null: none.
  Parameter* unreduced() const;
  void forget();  // after an exception: waits for what is under way, ignoring errors, and empties the buckets

 private:
  // A parameter's gradient, or the NO_SHARD rows of a split weight's.
  struct Item {
    Item(Parameter* p, size_t b) : param(p), bucket(b) {}

    Parameter* param;
    size_t bucket;
    bool dirty = false;   // its gradient changed since it was last averaged
    bool queued = false;  // waits in its bucket
    Work in_flight;
    // Under mixed precision: this backward's gradient, to be averaged by itself and then added to what is
    // kept; not where no_sync kept something that is still to be averaged. See Note [Mixed precision].
    at::Tensor pending;
    // Of a split weight: it kept nothing before this backward, whose gradient is averaged where it stays.
    bool first = false;
    bool averages_alone() const { return pending.defined() || !dirty; }

    // The tensor to average; undefined while there is no gradient.
    at::Tensor gradient() const;
  };
  struct Bucket {
    TaskNames names;
    std::vector<TaskNames::Part> parts;  // of the items, in the reduction that is being submitted
    std::vector<std::unique_ptr<Item>> items;
    Arrivals arrivals;
  };

  Item* item_of(const Parameter& param) const {
    return param.index < item_of_.size() ? item_of_[param.index] : nullptr;
  }
  void open(const std::string& name, const std::vector<Parameter*>& params);
  void launch(Bucket& bucket);
  void launch_mixed(Bucket& bucket);

  std::shared_ptr<Lane> lane_;
  std::shared_ptr<Collectives> collectives_;
  const StepState& step_;
  int64_t model_;
  std::vector<Bucket> buckets_;
  std::vector<Item*> item_of_;  // by the parameter's index
  std::vector<Work> works_;
};

}  // namespace osdp::runtime
