// UnitScheduler: unshards, reshards and reduces units, in step with the calls that read them and the
// gradients that arrive for them.
//
// Invariants:
//   - It alone changes a unit's state, by the transitions of Note [Unit states], each of which asserts the
//     state that it comes from.
//   - Beside the unit in use it holds what Depth allows; gradients leave one by one, or as far as they fit
//     (Note [Gradients that leave]).
//   - All collectives of units go to the lanes from here, in the order of the model's code, which all ranks
//     run alike.
//   - What it submits is waited for before a backward ends (wait_reductions), or after an exception
//   (forget_reductions).
// Called by the thread that runs forward or backward; the GIL must not be held.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/step/gradient_buckets.hpp"
#include "runtime/step/hybrid_reducer.hpp"
#include "runtime/step/prefetch_order.hpp"
#include "runtime/step/step_state.hpp"
#include "runtime/step/transfer_plan.hpp"
#include "runtime/store/arena.hpp"
#include "runtime/store/model_shards.hpp"

namespace osdp::runtime {

// Counters since the last reset, for reports and tests.
struct Statistics {
  int64_t gathers = 0;
  int64_t gathered_bytes = 0;
  int64_t prefetches = 0;
  int64_t reductions = 0;
  int64_t reduced_bytes = 0;
  int64_t sent_bytes = 0;  // payload that this rank sent round its ring
};

class UnitScheduler {
 public:
  // `reductions`: `gathers` unless they have a lane of their own. `hybrid`: null where no unit is
  // HYBRID_SHARD. All arguments outlive this.
  UnitScheduler(const ModelShards& shards, const StepState& step, Arena& arena, GradientBuckets& buckets,
                std::shared_ptr<Lane> gathers, std::shared_ptr<Lane> reductions,
                std::shared_ptr<HybridReducer> hybrid);

  // How many units of the recorded order are gathered ahead of the one in use, if they are all of the largest
  // size (Note [How far ahead]): at most 2 + that many full-size tensors exist at a time. 1 unless set.
  void set_prefetch(size_t units);
  size_t prefetch() const { return depth_.units; }

  // --- forward
  void begin_forward();
  void begin_call(Call& call);             // its units are Unsharded when this returns
  void end_call(Call& call, bool failed);  // reshards those that nobody reads any more
  void keep_recomputed(const Call& call);  // see Note [Functions that are recomputed]
  void end_forward(bool failed);           // what is not kept for the backward is resharded

  // --- backward
  void begin_backward();
  // Its units are Unsharded when this returns. `reads`: its end will be told (end_call_backward). `again`:
  // see Note [Backward of a backward].
  void begin_call_backward(const Call& call, bool reads, bool again);
  void end_call_backward(const Call& call);
  // The gradient of a parameter of the unit is complete, `gradient` undefined where it is not to be reduced;
  // with the last one of this graph task the unit is resharded and reduced.
  void gradient_arrived(Unit& unit, Slot& slot, at::Tensor gradient);
  // What no event told of: units whose gradients did not all come (backward of some inputs only), units
  // prefetched or held and not used, gradients kept under no_sync of parameters that this backward did not
  // reach. `creates_graph`: keeps what this backward has gathered.
  void finish_units(bool creates_graph);
  bool reduced() const { return !reductions_.empty(); }  // something, in this backward
  void wait_reductions();
  void end_backward();
  // After an exception: waits for reductions, whose errors are ignored; then all units are Sharded.
  void forget_reductions();
  void abort();

  // --- slices of split weights
  const at::Tensor& begin_slice(Unit& slice);  // Unsharded until its last end_slice
  void end_slice(Unit& slice) noexcept;
  void slice_gradient_arrived(Unit& slice, at::Tensor gradient);

  // A parameter whose gradient no_sync has kept and nothing has reduced or dropped since; null: none.
  Parameter* unreduced() const;
  // The host waits for the copies of Note [Shards in host memory].
  void await_host_memory();
  void give_back_idle_memory();

  const Statistics& statistics() const { return statistics_; }
  void reset_statistics() { statistics_ = {}; }

 private:
  // --- transitions
  void unshard(Unit& unit);           // Sharded, or Unsharded and stale -> Unsharding
  void wait_unshard(Unit& unit);      // Unsharding -> Unsharded
  void reshard(Unit& unit) noexcept;  // any -> Sharded
  void use(Unit& unit);               // any -> Unsharded, and the next ones of the order -> Unsharding
  void assert_state(const Unit& unit, bool holds, const char* transition) const;

  bool stale(const Unit& unit) const;
  void reshard_after_forward(Call& call, Unit& unit, bool failed);
  void reshard_after_backward(Unit& unit);
  void add_pending(Slot& slot, at::Tensor gradient) const;
  void reduce_or_keep(Unit& unit);  // pending gradients -> the lane; or kept, under no_sync
  void reduce(Unit& unit);
  void await_room(size_t bytes);  // for a gradient that leaves

  const ModelShards& shards_;
  const StepState& step_;
  Arena& arena_;
  GradientBuckets& buckets_;
  const std::shared_ptr<Lane> lane_;
  const std::shared_ptr<Lane> reductions_lane_;
  const std::shared_ptr<HybridReducer> hybrid_;
  Depth depth_;
  Depth kept_depth_;  // of a forward that keeps what it gathers for its backward
  PrefetchOrder forward_order_;
  PrefetchOrder backward_order_;
  struct Leaving {
    Work reduction;
    size_t bytes;
  };
  std::vector<Leaving> reductions_;     // of this backward
  size_t left_ = 0;                     // so many of them have left: Note [Gradients that leave]
  std::vector<TaskNames::Part> parts_;  // of the slots of the unit that is being reduced
  Statistics statistics_;
};

}  // namespace osdp::runtime
