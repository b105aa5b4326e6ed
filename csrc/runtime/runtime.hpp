// Runtime: a training step of one sharded model. Knows the units' states and what moves them.
//
//   hooks of modules and autograd (autograd_hooks.cpp)  -->  transitions (forward.cpp, backward.cpp)
//        -->  unshard, reshard, reduce of units (unit_scheduler.cpp), buckets of NO_SHARD gradients
//        (gradient_buckets.cpp)
//        -->  the lane (lane.cpp), which runs collectives (collectives.cpp) in one order
//
// Everything here runs on the thread that runs forward (and, for hooks, the one that runs backward); only
// tasks given to the lane run elsewhere, and they touch only what they were given. The GIL must not be held
// where a transition may wait. Errors: c10::Error or std::runtime_error, naming unit and phase.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/lane.hpp"
#include "comm/phase_range.hpp"
#include "runtime/step/gradient_buckets.hpp"
#include "runtime/step/hybrid_reducer.hpp"
#include "runtime/step/norm.hpp"
#include "runtime/step/prefetch_order.hpp"
#include "runtime/step/replicas.hpp"
#include "runtime/store/arena.hpp"
#include "runtime/store/precision.hpp"
#include "runtime/store/shard_groups.hpp"
#include "runtime/store/shard_store.hpp"
#include "runtime/store/spec.hpp"
#include "runtime/store/unit.hpp"

namespace osdp::runtime {

class BackwardEnd;

// Counters since the last reset, for reports and tests.
struct Statistics {
  int64_t gathers = 0;
  int64_t gathered_bytes = 0;
  int64_t prefetches = 0;
  int64_t reductions = 0;
  int64_t reduced_bytes = 0;
  int64_t sent_bytes = 0;  // payload that this rank sent round its ring
};

class Runtime : public std::enable_shared_from_this<Runtime> {
 public:
  // Shards the parameters in place. `groups`: process groups that only this package uses, so that the
  // caller's own collectives cannot slip in between. Parameters in no unit are left alone. `model`: 1, 2,
  // ..., a number that the ranks have agreed on, so that the messages of two models never match.
  // `backend_memory`: see Note [Memory of the backend]; the groups' backends have some.
  Runtime(const Groups& groups, at::Device device, std::vector<ParamSpec> params, std::vector<UnitSpec> units,
          int64_t model, bool backend_memory = false);
  ~Runtime();

  // After construction: installs hooks on the gradients (needs shared_from_this).
  void install();
  // fully_shard failed and the model is put back: its gradients are no longer this runtime's, however long it
  // lives.
  void uninstall();
  bool installed() const { return installed_; }

  // Takes in parameters that the model got since, as NO_SHARD: their indices follow those there are. Between
  // steps; `label` names the bucket of their gradients. Every rank must hold the same values.
  void join(const std::string& label, std::vector<ParamSpec> specs);
  // Which parameters the model lacks now: their gradients count in no norm, and nothing is asked of them.
  void set_absent(const std::vector<int64_t>& indices);
  // The number of registrations of modules and parameters that the model's tree was last compared after, and
  // the model's forwards since the runtime was made. See Note [A module tree that changes] in module_tree.py.
  uint64_t tree_seen = 0;
  uint64_t root_calls = 0;

  int64_t rank() const { return collectives_->rank(); }
  int64_t world() const { return collectives_->world(); }
  bool alone() const { return collectives_->alone(); }

  // The call of a module that gathers the units that hold these parameters. Each module has one call, and one
  // for each of its registered methods.
  Call* add_call(std::string module, const std::vector<int64_t>& params, bool root, bool hold,
                 bool method = false);
  // The id (see ops::register_source) under which the slices of a split parameter are asked for.
  int64_t source_of(int64_t param) const { return sources_.at(param); }

  // --- forward (forward.cpp)
  bool wants_inputs(const Call& call) const;
  void begin_call(Call& call, const std::vector<at::Tensor>& inputs);
  void end_call(Call& call, const std::vector<at::Tensor>& outputs, bool failed);
  // A forward is about to run: true if it is the first one of the innermost call, which is `call`; else it
  // was called by itself, and nothing is gathered for it yet.
  bool begins_forward(const Call& call);
  // The exception, in words, that ends the calls under way or the backward.
  void note_exception(std::string text) { exception_text_ = std::move(text); }

  // Within a call or a backward: sharded parameters are unsharded, see Note [Sharded and unsharded].
  bool in_pass() const { return !stack_.empty() || backward_; }

  // --- backward (backward.cpp)
  void begin_backward();
  // The first parameter whose gradient no_sync has kept and nothing has reduced or dropped since; null: none.
  Parameter* unreduced();
  void begin_call_backward(const Call& call, Invocation* invocation);
  void end_call_backward(const Call& call, Invocation& invocation);
  void before_gradient(Parameter& param);
  void after_gradient(Parameter& param, const at::Tensor& made);  // made: what autograd accumulated
  void finish_backward();
  void await_backward();  // until the last one has ended, and what an exception left is put back
  void abort() noexcept;  // after an exception: everything released, parameters sharded, lane quiet

  // How many units of the recorded order are gathered ahead of the one in use, if they are all of the largest
  // size (Note [How far ahead]): at most 2 + that many full-size tensors exist at a time. 1 unless set.
  void set_prefetch(size_t units);
  size_t prefetch() const { return depth_.units; }

  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }

  // --- slices (slice_provider.cpp)
  at::Tensor acquire_slice(int64_t param, int64_t slice);
  void release_slice(int64_t param, int64_t slice) noexcept;
  void put_slice_gradient(int64_t param, int64_t slice, at::Tensor gradient);

  // --- whole parameters (full_params.cpp); collective, outside of forward and backward
  // The full tensor of which `local` is this rank's part (the parameter's data, its gradient, an optimizer's
  // state).
  at::Tensor gather_whole(int64_t param, const at::Tensor& local, const char* what = "whole");
  bool summoned() const { return summoned_; }
  void summon(bool with_grads);
  void unsummon(bool writeback);
  // The norm of all gradients, one collective; if larger than max_norm all gradients are scaled to it.
  at::Tensor clip_grad_norm(double max_norm, double norm_type, bool error_if_nonfinite);
  // Of what this rank holds of a parameter (or of its gradient, `local`) the pieces that it counts in a sum
  // over all ranks; the others another rank counts.
  std::vector<at::Tensor> counted_pieces(int64_t param, const at::Tensor& local) const;
  // Of `counted`, over all ranks; `function` and `details` say what was asked for, alike on all of them.
  NormTerms norm_terms(const std::vector<at::Tensor>& counted, double norm_type, const char* function,
                       std::string details) const;

  Parameter& parameter(int64_t index) { return *params_.at(index); }
  // The parameter in whose memory this tensor lies, between steps; null where it is none of ours.
  const Parameter* owner_of(const at::Tensor& tensor) const;
  // Something may have changed parameters on some ranks only: compares them at the next forward.
  void suspect_replicas();
  int64_t index_of(const Parameter& param) const { return static_cast<int64_t>(index_of_.at(&param)); }
  size_t size() const { return params_.size(); }
  size_t gathered_bytes() const;
  // Whether torch.autocast is on and will keep low-precision copies of parameters for backward.
  bool autocast_copies() const;
  size_t copied_bytes() const;  // of NO_SHARD parameters' copies in their compute dtype
  void set_budget(std::string sentence) { arena_.set_budget(std::move(sentence)); }
  size_t arena_bytes() const { return arena_.reserved_bytes(); }
  // Seconds from one training forward's beginning to the next's: the last kStepsKept of them.
  const std::vector<double>& step_seconds() const { return step_seconds_; }
  // Right between steps; what the lane still sends is not counted yet.
  Statistics statistics() const;
  void reset_statistics();

 private:
  // Where a parameter's pieces are handled.
  struct Place {
    Unit* unit = nullptr;       // sharded, not split
    WholeCopy* copy = nullptr;  // whole, under mixed precision
    Slot* slot = nullptr;
    std::vector<Unit*> slices;                  // the sharded slices of a split one
    const ShardGroups* shard_groups = nullptr;  // the ranks over which it is cut, where it is
    BucketItem* bucket = nullptr;  // NO_SHARD, or the NO_SHARD slices of a split one; null with one rank
  };
  Place& place_of(const Parameter& param) { return places_[index_of_.at(&param)]; }

  Parameter& add_parameter(const ParamSpec& spec, bool sharded, const ShardGroups& shard_groups);
  void add_buckets(const std::string& label, const std::vector<Parameter*>& replicated);
  void add_copy(Parameter& param);  // where it is whole and computed in another dtype
  void install_hooks(Parameter& param);
  bool installed_ = false;

  // --- units (unit_scheduler.cpp)
  void unshard(Unit& unit);           // Sharded (or stale) -> Unsharding
  void wait_unshard(Unit& unit);      // Unsharding -> Unsharded
  void use(Unit& unit);               // any -> Unsharded, and the next one of the order -> Unsharding
  void reshard(Unit& unit) noexcept;  // any -> Sharded
  void reduce(Unit& unit);            // pending gradients -> the lane
  void await_room(size_t bytes);      // for a gradient that leaves
  void keep_unreduced(Unit& unit);    // pending gradients -> unsynced (no_sync)
  void add_pending(Slot& slot, at::Tensor gradient);
  at::Tensor& split_gradient(Parameter& param);
  bool all_arrived(Unit& unit);

  void tell_place();  // to the tracker: the innermost call under way
  void tell_raised();
  void show_unsharded(const Call& call);
  void show_unsharded(const std::vector<Unit*>& units);
  void show_unsharded(const std::vector<WholeCopy*>& copies, bool fresh);
  void went_unsharded(Parameter& param);
  void show_sharded();
  void await_host_memory();
  void check_replicas();
  void look_for_a_step();
  void set_accumulates(bool accumulates);
  void drop_copies();
  void take_whole_gradient(Parameter& param, Place& place, const at::Tensor& made);
  void reshard_after_forward(Call& call, Unit& unit, bool failed);
  void open(Call& call);
  void close(bool failed);
  void check_written(const Call& call);
  void check_written();
  void refuse_write(const Parameter& param, const std::string& where);
  void note_writes();
  void note_recomputation();
  void check_asked();
  void call_hooks();
  void reshard_after_backward(Unit& unit);
  void finish_units();
  void note_unsynced();

  const int64_t model_;
  std::shared_ptr<Lane> lane_;
  std::shared_ptr<Lane> reductions_lane_;          // lane_ unless reductions are apart
  ShardGroups everyone_;                           // NO_SHARD, SHARD_GRAD_OP, FULL_SHARD
  std::shared_ptr<Collectives> collectives_;       // of all ranks, on lane_
  ShardGroups hybrid_;                             // HYBRID_SHARD
  std::shared_ptr<HybridReducer> hybrid_reducer_;  // HYBRID_SHARD: null where nothing is
  Arena arena_;
  Buckets buckets_;
  at::Device device_;      // that computes
  bool offloads_ = false;  // some parameter is away from it; see offload.hpp
  std::vector<std::unique_ptr<Parameter>> params_;
  std::vector<std::unique_ptr<Unit>> units_;  // gathered ones, slices included
  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<std::unique_ptr<WholeCopy>> owned_copies_;
  std::vector<WholeCopy*> copies_;  // all of them

  std::vector<Place> places_;
  std::unordered_map<const Parameter*, size_t> index_of_;
  std::unordered_map<int64_t, int64_t> sources_;  // split parameter -> source id

  Replicas replicas_{model_}, column_replicas_;
  std::vector<Parameter*> replicated_;  // whole parameters
  std::vector<Parameter*> in_columns_;  // HYBRID_SHARD: the ranks of a column hold the same rows
  Depth depth_;
  Depth kept_depth_;  // of a forward that keeps what it gathers for its backward
  PrefetchOrder forward_order_;
  PrefetchOrder backward_order_;
  struct Frame {
    Call* call;
    std::shared_ptr<Invocation> invocation;  // null unless it reads frozen parameters that train others
    PhaseRange range;
    bool in_forward = false;  // its forward has begun
    bool grad = false;        // it records a graph
  };
  std::vector<Frame> stack_;           // forward calls under way
  std::vector<Parameter*> unsharded_;  // parameters that are unsharded
  std::vector<Work> reductions_;       // of this backward
  struct Leaving {
    Work reduction;
    size_t bytes;
  };
  std::deque<Leaving> leaving_;  // see Note [Gradients that leave]
  int64_t epoch_ = 0;            // counts outermost forwards: what was gathered in an earlier one is stale
  bool grad_forward_ = false;    // the outermost forward records a graph
  bool root_forward_ = false;    // the outermost forward is the model's, not a submodule's by itself
  bool backward_ = false;
  bool creates_graph_ = false;   // this backward; see Note [Backward of a backward]
  bool kept_unreduced_ = false;  // the last backward was under no_sync
  int asked_task_ = -1;          // the graph task that check_asked() has looked at
  int64_t backward_count_ = 0;
  bool accumulates_ = false;       // see Note [Micro-batches between steps]
  bool compares_replicas_ = true;  // at the next training forward: once per backward that averages
  std::shared_ptr<BackwardEnd> backward_end_;  // of the last one, until somebody has waited for it
  PhaseRange backward_range_;                  // from one call's backward to the next one's
  bool sync_ = true;
  std::string exception_text_;
  bool summoned_ = false;
  std::vector<at::Tensor> summoned_local_, summoned_grad_;
  Statistics statistics_;
  int64_t sent_bytes() const;  // of all its collectives, since they were made
  int64_t sent_before_ = 0;    // the same at the last reset
  static constexpr size_t kStepsKept = 1000;
  std::vector<double> step_seconds_;
  std::optional<std::chrono::steady_clock::time_point> last_step_;
};

}  // namespace osdp::runtime
