// ParamViews: which parameters show their full shape, and what was written to them meanwhile.
//
// Note [Sharded and unsharded]
// From the outermost call's begin to its end, and from a backward's begin to its end, sharded parameters are
// unsharded: they have their full shape, readable while gathered. Reading one that is not gathered is then an
// error, not a silently smaller matrix. Between passes they are what this rank holds, with its gradient: for
// optimizers, zero_grad, clipping. A call of a submodule by itself unshards only its own parameters, and
// those of the calls within it. A method unshards all of them: what it reads without having said so is an
// error.
//
// Invariant: a parameter that shows its full shape is listed here, until show_sharded().
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/step/step_state.hpp"
#include "runtime/store/model_shards.hpp"

namespace osdp::runtime {

class ParamViews {
 public:
  // `hook_gradient` makes a parameter's gradient node, while it shows what its gradients look like.
  ParamViews(const ModelShards& shards, const StepState& step, std::function<void(Parameter&)> hook_gradient)
      : shards_(shards), step_(step), hook_gradient_(std::move(hook_gradient)) {}

  void show_unsharded(const Call& call);  // with fresh copies in the compute dtype
  // `fresh`: of copies too that were kept; the optimizer may have stepped since.
  void show_all_unsharded(bool fresh);
  void show_sharded();
  void drop_copies();  // of parameters that are sharded

  // Note [Writes in forward]. Both throw ShardingError where a parameter was written to that is gathered.
  void check_written(const Call& call) const;
  void check_written() const;
  void note_writes();  // to NO_SHARD parameters, on the way out

  // Of gradients that were reduced since: see Note [Hooks after accumulation].
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
};

}  // namespace osdp::runtime
