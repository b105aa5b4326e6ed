// Mixed precision: the dtypes in which a step computes and averages gradients, where they differ from the
// dtype that a rank keeps.
//
// Note [Mixed precision]
// A parameter has three dtypes. Its own dtype: that of the shard and the gradient that a rank keeps, and so
// of the optimizer's state; checkpoints and summon_full_params see no other. The compute dtype: rows are cast
// to it before they are gathered, so both the message and the gathered tensor are smaller. The reduce dtype:
// gradients are cast to it, averaged over the ranks, and the mean is added to the gradient that the rank
// keeps.
//
// Only one micro-batch's gradient is ever averaged, never the sum so far: a sum in 8 bits of mantissa would
// stop growing. For the same reason a gradient kept under no_sync is widened to the parameter's own dtype as
// soon as a second one is added to it.
//
// A parameter that every rank holds in full (NO_SHARD, and everything on one rank) is shown unsharded too: a
// copy in the compute dtype is made when a forward begins and dropped when its backward ends.
//
// Changing the dtype makes autograd drop the parameter's AccumulateGrad node. The original node, which
// expects gradients in the compute dtype, is put back at each change: see Parameter::show.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/collectives.hpp"
#include "runtime/store/shard_store.hpp"

namespace osdp::runtime {

// a + b in the parameter's own dtype or a wider one; in place in `a` if its dtype is wide enough.
at::Tensor wide_sum(at::Tensor a, const at::Tensor& b, at::ScalarType own);

// The factor that gradients are multiplied by before ranks sum them in this dtype: half can overflow on the
// sum of W gradients although it can represent their mean. About 1 / sqrt(W), so that neither large gradients
// overflow nor small ones underflow; a power of two, so that the scaling is exact; 1 for other dtypes.
double headroom_of(at::ScalarType reduce, int64_t world);

// A NO_SHARD gradient, or the NO_SHARD rows of a split weight's, on its way to being averaged.
struct Averaged {
  Parameter* param;
  at::Tensor gradient;  // this backward's; or the sum that this rank has kept under no_sync
  at::Tensor kept;      // the gradient that this rank keeps; undefined: none yet
  bool replaces;        // the mean replaces `kept` (which is `gradient`); otherwise it is added
};

// Concatenates them into one tensor of dtype `reduce`, scaled by headroom_of. Releases the gradients that
// nothing else keeps.
at::Tensor joined(int64_t world, at::ScalarType reduce, std::vector<Averaged>& gradients);
// Averages `joined` over the ranks and stores the means. Runs on the lane.
void average(comm::Collectives& collectives, const at::Tensor& joined, std::vector<Averaged>& gradients);

// A parameter that every rank holds in full, while it is unsharded.
class WholeCopy {
 public:
  explicit WholeCopy(Parameter& owner) : owner_(&owner) {}

  Parameter& owner() const { return *owner_; }
  // Called before the parameter is shown unsharded. Returns whether shown() must be cast from the parameter's
  // current value. `fresh`: cast anew even if a copy was kept, since the optimizer may have stepped.
  bool cast(bool fresh);
  const at::Tensor& shown() const { return copy_; }
  void drop() { copy_.reset(); }  // only while sharded
  size_t bytes() const { return copy_.defined() ? copy_.nbytes() : 0; }

 private:
  Parameter* owner_;
  at::Tensor copy_;  // undefined where the compute dtype is the parameter's own
};

}  // namespace osdp::runtime
