// Mixed precision: what a step computes in and averages gradients in, where that is not what a rank keeps.
//
// Note [Mixed precision]
// A parameter has three dtypes. Its own: what a rank keeps of it, its gradient, and with them the optimizer's
// state; checkpoints and summon_full_params see nothing else. The compute dtype: its rows are cast before
// they are gathered, so that the gathered tensor is smaller and so is what travels. The reduce dtype:
// gradients are cast to it, averaged over the ranks, and the mean is added to the gradient that the rank
// keeps.
//   Only one micro-batch's gradient is ever averaged, never the sum so far: a sum in 8 bits of mantissa would
// stop growing. For the same reason what no_sync keeps is widened to the parameter's own dtype as soon as a
// second gradient joins it.
//   A parameter that every rank holds in full (NO_SHARD, and everything on one rank) goes unsharded too: a
//   copy
// in the compute dtype is made when a forward begins and dropped when its backward ends.
//   A switch of dtype makes autograd forget the parameter's AccumulateGrad node. The one node, which expects
// gradients in the compute dtype, is put back at each switch: see Parameter::show.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/collectives.hpp"
#include "runtime/store/shard_store.hpp"

namespace osdp::runtime {

// a + b, in a's memory where that is wide enough: in the parameter's own dtype, or a wider one.
at::Tensor wide_sum(at::Tensor a, const at::Tensor& b, at::ScalarType own);

// What gradients are multiplied with before ranks sum them in this dtype: half has little room for the sum of
// W gradients whose mean it can hold. About 1 / sqrt(W), so that neither large gradients overflow nor small
// ones vanish; a power of two, so that nothing is rounded; 1 for other dtypes.
double headroom_of(at::ScalarType reduce, int64_t world);

// A NO_SHARD gradient, or the NO_SHARD rows of a split weight's, on its way to being averaged.
struct Averaged {
  Parameter* param;
  at::Tensor gradient;  // this backward's; or all that this rank has kept under no_sync
  at::Tensor kept;      // the gradient that this rank keeps; undefined: it has none yet
  bool replaces;        // the mean replaces `kept` (which is `gradient`), else it is added
};

// All of them in one tensor in dtype `reduce`, with headroom. Lets go of those that nobody keeps.
at::Tensor joined(int64_t world, at::ScalarType reduce, std::vector<Averaged>& gradients);
// Averages what was joined over the ranks, and delivers the means. On the lane.
void average(Collectives& collectives, const at::Tensor& joined, std::vector<Averaged>& gradients);

// A parameter that every rank holds in full, while it is unsharded.
class WholeCopy {
 public:
  explicit WholeCopy(Parameter& owner) : owner_(&owner) {}

  Parameter& owner() const { return *owner_; }
  // Before the parameter goes unsharded: whether shown() is to be cast from what the parameter is. `fresh`:
  // also where a copy was kept; the optimizer may have stepped since.
  bool cast(bool fresh);
  const at::Tensor& shown() const { return copy_; }
  void drop() { copy_.reset(); }  // only while sharded
  size_t bytes() const { return copy_.defined() ? copy_.nbytes() : 0; }

 private:
  Parameter* owner_;
  at::Tensor copy_;  // undefined where the compute dtype is the parameter's own
};

}  // namespace osdp::runtime
