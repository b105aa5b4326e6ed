// ParamViews: switches parameters between their sharded and full shapes, and detects in-place writes to them.
//
// Note [Sharded and unsharded]
// From the begin of the outermost call to its end, and from the begin of a backward to its end, sharded
// parameters are unsharded: they have their full shape and are readable while gathered. Reading one that is
// not gathered is then an error instead of silently giving a smaller matrix. Between passes a parameter shows
// this rank's shard and its gradient, for optimizers, zero_grad and clipping. A call of a submodule on its
// own unshards only its parameters and those of nested calls. A method unshards all parameters, so that
// reading one that is not registered for the method is an error.
//
// Invariant: unsharded_ lists every parameter that shows its full shape, until show_sharded().
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/step/step_state.hpp"
#include "runtime/step/wrapped_parameters.hpp"
#include "runtime/store/model_shards.hpp"

namespace osdp::runtime {

class ParamViews {
 public:
  // `hook_gradient` creates a parameter's AccumulateGrad node while the parameter shows the shape of its
  // gradients.
  ParamViews(const ModelShards& shards, const StepState& step, std::function<void(Parameter&)> hook_gradient)
      : shards_(shards), step_(step), hook_gradient_(std::move(hook_gradient)) {}

  void show_unsharded(const Call& call);  // with fresh copies in the compute dtype
  // `fresh`: casts copies anew even if they were kept, since the optimizer may have stepped.
  void show_all_copies(bool fresh);
  // Whether gathered or not: a read of one that is not gathered is then an error, and never one of this
  // rank's rows.
  void show_all_units();
  // What modules find in the place of some parameters: after these show what a pass computes with.
  void show_wrapped() { wrapped_.show(); }
  void show_sharded();
  void drop_copies();  // of parameters that do not show them now

  // See Note [Writes in forward]. Both throw ShardingError if a gathered parameter was written to.
  void check_written(const Call& call) const;
  void check_written() const;
  WrappedParameters& wrapped() { return wrapped_; }
  void note_writes();  // to NO_SHARD parameters, at the end of a pass

  // Calls the hooks of parameters whose gradients were reduced: see Note [Hooks after accumulation].
  void call_hooks();

 private:
  void show(const std::vector<Unit*>& units);
  void show(Unit& unit);
  template <typename Copies>
  void show_copies(const Copies& copies, bool fresh);
  void went_unsharded(Parameter& param);
  [[noreturn]] void refuse_write(const Parameter& param, const std::string& where) const;

  const ModelShards& shards_;
  const StepState& step_;
  const std::function<void(Parameter&)> hook_gradient_;
  std::vector<Parameter*> unsharded_;
  WrappedParameters wrapped_;
};

}  // namespace osdp::runtime
