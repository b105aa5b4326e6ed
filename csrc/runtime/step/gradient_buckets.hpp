// Buckets: gradients of what every rank holds in full (NO_SHARD), averaged over the ranks in place.
//
// Note [Buckets]
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
#include "runtime/store/shard_store.hpp"

namespace osdp::runtime {

// A parameter's gradient, or the NO_SHARD rows of a split weight's.
struct BucketItem {
  BucketItem(Parameter* p, size_t b) : param(p), bucket(b) {}

  Parameter* param;
  size_t bucket;
  bool dirty = false;   // its gradient changed since it was last averaged
  bool queued = false;  // waits in its bucket
  Work in_flight;
  // Under mixed precision: this backward's gradient, to be averaged by itself and then added to what is kept;
  // not where no_sync kept something that is still to be averaged. See Note [Mixed precision].
  at::Tensor pending;
  // Of a split weight: it kept nothing before this backward, whose gradient is averaged where it stays.
  bool first = false;
  bool averages_alone() const { return pending.defined() || !dirty; }

  // The tensor to average; undefined while there is no gradient.
  at::Tensor gradient() const;
};

class Buckets {
 public:
  // `model`: see Runtime.
  Buckets(std::shared_ptr<Lane> lane, std::shared_ptr<Collectives> collectives, int64_t model)
      : lane_(std::move(lane)), collectives_(std::move(collectives)), model_(model) {}

  // Opens a bucket of one dtype and device; returns the items in the order given.
  std::vector<BucketItem*> add(const std::string& name, const std::vector<Parameter*>& params);

  // The item's gradient is complete for this graph task. Launches its bucket if all of the task's are there.
  void arrived(BucketItem& item);
  // Before the gradient is written again: a reduction under way must end first.
  void await(BucketItem& item);
  // Launches every bucket that has gradients left which changed since they were last averaged, in order.
  void flush();
  void wait_all();
  bool launched() const { return !works_.empty(); }  // since the last wait_all()
  // See Note [Micro-batches between steps].
  void set_accumulates(bool accumulates) { accumulates_ = accumulates; }
  // A parameter whose gradient this rank has kept for itself; null: none.
  Parameter* unreduced() const;
  void forget();  // after an exception: waits for what is under way, ignoring errors, and empties the buckets

 private:
  struct Bucket {
    TaskNames names;
    std::vector<TaskNames::Part> parts;  // of the items, in the reduction that is being submitted
    std::vector<std::unique_ptr<BucketItem>> items;
    int64_t task = -1;
    int64_t expected = 0;
    int64_t arrived = 0;
  };

  void launch(Bucket& bucket);
  void launch_mixed(Bucket& bucket);

  std::shared_ptr<Lane> lane_;
  std::shared_ptr<Collectives> collectives_;
  int64_t model_;
  std::vector<Bucket> buckets_;
  std::vector<Work> works_;
  bool accumulates_ = false;
};

}  // namespace osdp::runtime
