// WrappedParameters: parameters that their modules see as a tensor of another class during passes.
//
// Note [Parameters of tensor parallelism]
// parallelize_module makes a module's parameter a DTensor: a wrapper around the part that this rank holds
// over the mesh of tensor parallelism. A step works on that part alone: it is what is sharded over the
// data-parallel ranks, gathered and reduced, and what optimizers see between steps. The module's code needs
// the DTensor. So one wrapper per parameter is made when the model is sharded, and from the begin of a pass
// to its end modules find it in the parameter's place (their dictionaries are switched, as in FSDP2). It
// wraps `inner`, a tensor that shares the parameter's version counter and is given whatever data the
// parameter shows: the storage of a gathered parameter never changes, so that most passes give it nothing. A
// node of autograd leads from the wrapper to the parameter's AccumulateGrad node, and takes the gradient out
// of its wrapper. A step makes no DTensor for its parameters and runs no Python for them; without wrapped
// parameters it pays nothing.
//   After its pass a wrapper that a script has kept reads the storage of the gathered parameter, which is an
//   error that
// names it; that of a parameter that every rank holds reads the parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

#include "runtime/store/shard_store.hpp"

namespace osdp::runtime {

struct Wrapped {
  Parameter* param;
  at::Tensor inner;      // what `outer` wraps
  at::Tensor outer;      // a leaf without a gradient when it is added
  Parameter::Node node;  // outer's grad_fn, without edges: gives a gradient of outer as one of the parameter
  at::Tensor nowhere = {};  // what `inner` shows where it may show nothing
};

class WrappedParameters {
 public:
  // Makes modules find the wrappers (true) or the parameters themselves (false).
  using Place = std::function<void(bool wrapped)>;

  void set(std::vector<Wrapped> wrapped, Place place);
  // `place` is told of every pass too, after the wrappers are placed and before they are taken out.
  void on_pass(Place place) { on_pass_ = std::move(place); }
  bool empty() const { return wrapped_.empty(); }
  void show();  // when a pass has shown its parameters in full; may be repeated
  void hide();  // when a pass has ended; a copy in a compute dtype is not held any longer

 private:
  std::vector<Wrapped> wrapped_;
  Place place_, on_pass_;
  bool shown_ = false;
};

}  // namespace osdp::runtime
