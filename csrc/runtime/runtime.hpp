// Runtime: a training step of one sharded model, of its parts:
//
//   hooks of modules and autograd  -->  ForwardPass, BackwardPass, SliceProvider (what happened)
//        -->  UnitScheduler (unshard, reshard, reduce), GradientBuckets (NO_SHARD gradients), ParamViews
//        (shapes shown)
//        -->  the lanes, which run collectives in one order
//   between steps: FullParams
//
// Invariant: parts know those to the right of them, and of each other only their public methods; what all of
// them must agree on is StepState. Everything here runs on the thread that runs forward (and, for hooks, the
// one that runs backward); only tasks given to a lane run elsewhere, and they touch only what they were
// given. The GIL must not be held where a transition may wait. Errors: c10::Error or std::runtime_error,
// naming unit and phase.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/step/backward.hpp"
#include "runtime/step/forward.hpp"
#include "runtime/step/full_params.hpp"
#include "runtime/step/slice_provider.hpp"

namespace osdp::runtime {

class Runtime : public std::enable_shared_from_this<Runtime> {
 public:
  // Shards the parameters in place. `groups`: process groups that only this package uses, so that the
  // caller's own collectives cannot slip in between. Parameters in no unit are left alone. `model`: 1, 2,
  // ..., a number that the ranks have agreed on, so that the messages of two models never match.
  // `backend_memory`: see Note [Memory of the backend]; the groups' backends have some.
  Runtime(const Groups& groups, at::Device device, std::vector<ParamSpec> params, std::vector<UnitSpec> units,
          int64_t model, bool backend_memory = false);

  // After construction: installs hooks on the gradients (needs shared_from_this).
  void install();
  // fully_shard failed and the model is put back: its gradients are no longer this runtime's, however long it
  // lives.
  void uninstall();

  // Takes in parameters that the model got since, as NO_SHARD: their indices follow those there are. Between
  // steps; `label` names the bucket of their gradients. Every rank must hold the same values.
  void join(const std::string& label, std::vector<ParamSpec> specs);
  // Which parameters the model lacks now: their gradients count in no norm, and nothing is asked of them.
  void set_absent(const std::vector<int64_t>& indices);
  // The number of registrations of modules and parameters that the model's tree was last compared after, and
  // the model's forwards since the runtime was made. See Note [A module tree that changes] in module_tree.py.
  uint64_t tree_seen = 0;
  uint64_t root_calls = 0;

  // The call of a module that gathers the units that hold these parameters. Each module has one call, and one
  // for each of its registered methods.
  Call* add_call(std::string module, const std::vector<int64_t>& params, bool root, bool hold,
                 bool method = false);

  ForwardPass& forward() { return forward_; }
  BackwardPass& backward() { return backward_; }
  SliceProvider& slices() { return slices_; }
  FullParams& full_params() { return full_params_; }
  UnitScheduler& units() { return units_; }
  ReplicaChecks& replicas() { return replicas_; }
  const ModelShards& shards() const { return shards_; }
  Parameter& parameter(int64_t index) const { return shards_.parameter(index); }

  int64_t rank() const { return everyone_.shard->rank(); }
  int64_t world() const { return everyone_.shard->world(); }
  bool alone() const { return everyone_.shard->alone(); }
  // Within a call or a backward: see Note [Sharded and unsharded].
  bool in_pass() const { return !stack_.empty() || step_.in_backward; }
  void set_sync(bool sync) { step_.sync = sync; }
  bool sync() const { return step_.sync; }
  // Whether torch.autocast is on and will keep low-precision copies of parameters for backward.
  bool autocast_copies() const;
  void set_budget(std::string sentence) { arena_.set_budget(std::move(sentence)); }
  size_t arena_bytes() const { return arena_.reserved_bytes(); }
  // Right between steps; what the lane still sends is not counted yet.
  Statistics statistics() const;
  void reset_statistics();

 private:
  void install_hooks(Parameter& param);
  int64_t sent_bytes() const;  // of all its collectives, since they were made

  const std::shared_ptr<Lane> lane_;
  const std::shared_ptr<Lane> reductions_lane_;          // lane_ unless reductions are apart
  const ShardGroups everyone_;                           // NO_SHARD, SHARD_GRAD_OP, FULL_SHARD
  const ShardGroups hybrid_;                             // HYBRID_SHARD
  const std::shared_ptr<HybridReducer> hybrid_reducer_;  // null where nothing is HYBRID_SHARD
  const at::Device device_;                              // that computes
  Arena arena_;
  StepState step_;
  ModelShards shards_;
  ParamViews views_;
  CallStack stack_;
  GradientBuckets buckets_;
  UnitScheduler units_;
  ReplicaChecks replicas_;
  BackwardPass backward_;
  FullParams full_params_;
  ForwardPass forward_;
  SliceProvider slices_;
  int64_t sent_before_ = 0;  // sent_bytes() at the last reset
};

}  // namespace osdp::runtime
