// Runtime: runs the training steps of one sharded model. Its parts:
//
//   hooks of modules and autograd  -->  ForwardPass, BackwardPass, SliceProvider (events)
//        -->  UnitScheduler (unshard, reshard, reduce), GradientBuckets (NO_SHARD gradients), ParamViews
//        (shapes shown)
//        -->  the lanes, which run collectives in one order
//   between steps: FullParams
//
// Invariant: each part depends only on the parts to its right, through their public methods; the state that
// they share is StepState. Everything here runs on the thread that runs forward (hooks: on the one that runs
// backward). Only tasks submitted to a lane run elsewhere, and they touch only what was passed to them. The
// GIL must not be held where a transition may wait. Errors: c10::Error or std::runtime_error, naming unit and
// phase.
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
  // caller's own collectives cannot interleave with the model's. Parameters in no unit are left alone.
  // `model`: 1, 2, ..., a number that the ranks have agreed on, so that the messages of two models never
  // match. `backend_memory`: whether the groups' backends provide memory; see Note [Memory of the backend].
  Runtime(const Groups& groups, at::Device device, std::vector<ParamSpec> params, std::vector<UnitSpec> units,
          int64_t model, bool backend_memory = false);

  // Installs the gradient hooks. Separate from the constructor because it needs shared_from_this.
  void install();
  // Called when fully_shard failed and the model is restored: from then on the hooks do nothing, even if the
  // runtime lives on.
  void uninstall();

  // Adds parameters that the model gained after sharding, as NO_SHARD; their indices follow the existing
  // ones. Only between steps. `label` names the bucket of their gradients. Every rank must hold the same
  // values.
  void join(const std::string& label, std::vector<ParamSpec> specs);
  // Replaces the model's units, and ends its calls: add_call makes others. What this rank holds does not
  // change, and nothing is communicated; every rank must call it with the same units. Throws ShardingError,
  // before anything is changed, within a step or a scope of full parameters, while gradients are kept under
  // no_sync, and if the rows of a parameter would change. See Note [Units that change].
  void regroup(const std::vector<UnitSpec>& units);
  // Sets which parameters have been removed from the model: their gradients are left out of norms, and no
  // gradient is expected of them.
  void set_absent(const std::vector<int64_t>& indices);
  // Records that the model's tree has been compared after this many registrations of modules and parameters
  // in the process: Note [A module tree that changes] in module_tree.py.
  void saw_tree(uint64_t registrations) { tree_seen_ = registrations; }
  bool tree_changed(uint64_t registrations) const { return tree_seen_ != registrations; }
  // Counts the model's forwards; returns their number, this one included.
  uint64_t count_root_call() { return ++root_calls_; }

  // Adds the Call of a module, which gathers the units that hold these parameters. Each module has one, plus
  // one for each of its registered methods.
  Call* add_call(std::string module, const std::vector<int64_t>& params, bool root, bool hold,
                 bool method = false, const std::vector<int64_t>& alone = {});

  ForwardPass& forward() { return forward_; }
  BackwardPass& backward() { return backward_; }
  SliceProvider& slices() { return slices_; }
  FullParams& full_params() { return full_params_; }
  UnitScheduler& units() { return units_; }
  ReplicaChecks& replicas() { return replicas_; }
  WrappedParameters& wrapped_parameters() { return views_.wrapped(); }
  const ModelShards& shards() const { return shards_; }
  Parameter& parameter(int64_t index) const { return shards_.parameter(index); }

  int64_t rank() const { return everyone_.shard->rank(); }
  std::string rank_name() const { return step_.me(); }  // what errors call this rank
  int64_t world() const { return everyone_.shard->world(); }
  bool alone() const { return everyone_.shard->alone(); }
  // Within a call or a backward: see Note [Sharded and unsharded].
  bool in_pass() const { return !stack_.empty() || step_.in_backward; }
  void set_sync(bool sync) { step_.sync = sync; }
  bool sync() const { return step_.sync; }
  // The same for single parameters.
  void set_sync_of(const std::vector<int64_t>& params, bool sync);
  // For a script: see UnitScheduler. Raises ShardingError while parameters are shown in full.
  void unshard(const std::vector<int64_t>& params, bool wait);
  void await_unsharded(const std::vector<int64_t>& params);
  void reshard(const std::vector<int64_t>& params);
  void let_go(bool trained);
  void end_read_only();
  void set_part(bool part) { step_.part = part; }
  bool part() const { return step_.part; }
  // Whether torch.autocast is on and will keep low-precision copies of parameters for backward.
  bool autocast_copies() const;
  void set_budget(std::string sentence) { arena_.set_budget(std::move(sentence)); }
  size_t arena_bytes() const { return arena_.reserved_bytes(); }
  // Exact between steps; bytes that the lane has not sent yet are not counted.
  Statistics statistics() const;
  void reset_statistics();

 private:
  void install_hooks(Parameter& param);
  void open_buckets();
  int64_t sent_bytes() const;  // by all collectives, since they were created

  const std::shared_ptr<comm::Lane> lane_;
  const std::shared_ptr<comm::Lane> reductions_lane_;    // lane_, unless reductions have their own
  const ShardGroups everyone_;                           // NO_SHARD, SHARD_GRAD_OP, FULL_SHARD
  const ShardGroups hybrid_;                             // HYBRID_SHARD
  const std::shared_ptr<HybridReducer> hybrid_reducer_;  // null where nothing is HYBRID_SHARD
  const at::Device device_;                              // that runs the computation
  Arena arena_;
  const ShardGroups two_level_;  // FULL_SHARD_HIERARCHICAL, FULL_SHARD_HPZ: the ranks of everyone_
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
  uint64_t tree_seen_ = 0, root_calls_ = 0;
};

}  // namespace osdp::runtime
