// UnitScheduler: unshards, reshards and reduces units, in step with the calls that read them and the
// gradients that arrive for them.
//
// Invariants:
//   - It alone changes a unit's state, by the transitions of Note [Unit states], each of which asserts the
//     state that it comes from.
//   - Beside the unit in use it holds at most what Depth allows; gradients are reduced one at a time, or as
//     many as fit (Note [Gradients that leave]).
//   - All collectives of units go to the lanes from here, in the order of the model's code, which all ranks
//     run alike.
//   - Every reduction that it submits is awaited before a backward ends (wait_reductions) or after an
//     exception (forget_reductions).
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
#include "runtime/step/unit_state.hpp"
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
  int64_t sent_bytes = 0;  // payload that this rank sent on its rings
};

class UnitScheduler {
 public:
  // `reductions`: the lane of reductions, `gathers` unless they have their own. `hybrid`: null if no unit is
  // HYBRID_SHARD. All arguments outlive this.
  UnitScheduler(const ModelShards& shards, const StepState& step, Arena& arena, GradientBuckets& buckets,
                std::shared_ptr<comm::Lane> gathers, std::shared_ptr<comm::Lane> reductions,
                std::shared_ptr<HybridReducer> hybrid);

  // Sets how many units are prefetched beyond the one in use if all have the largest size (Note [How far
  // ahead]): at most 2 + `units` full-size tensors exist at a time. Default 1. `budget_bytes`: for the units
  // in use and those prefetched; 0: as many as that allows.
  void set_prefetch(size_t units, size_t budget_bytes);
  size_t prefetch() const { return depth_.units; }

  // The model's units have been replaced: Note [Units that change]. What a script asked of units is
  // forgotten.
  void regroup();

  // --- forward
  void begin_forward();
  void begin_call(Call& call);             // its units are Unsharded when this returns
  void end_call(Call& call, bool failed);  // reshards those that are no longer read
  void keep_recomputed(const Call& call);  // see Note [Functions that are recomputed]
  void end_forward(bool failed);           // reshards what is not kept for the backward

  // --- backward
  void begin_backward();
  // The call's units are Unsharded when this returns. `reads`: end_call_backward will be called for it.
  // `again`: see Note [Backward of a backward].
  void begin_call_backward(const Call& call, bool reads, bool again);
  void end_call_backward(const Call& call);
  // Whether this backward has reached it, and gradients of it are to come.
  bool in_backward(const Unit& unit) const { return state_of(unit).needs.has(Need::Gradients); }
  // The gradient of one of the unit's parameters is complete; `gradient` is undefined if there is nothing to
  // reduce. After the last one of this graph task the unit is resharded and reduced.
  void gradient_arrived(Unit& unit, Slot& slot, at::Tensor gradient);
  // Handles the units for which no event arrived: those with missing gradients (a backward to some inputs
  // only), those prefetched or held but not used, and gradients kept under no_sync whose parameters this
  // backward did not reach. `creates_graph`: keeps the units that this backward gathered.
  void finish_units(bool creates_graph);
  bool reduced() const { return !reductions_.empty(); }  // whether this backward submitted reductions
  void wait_reductions();
  void end_backward();
  // After an exception: waits for reductions, whose errors are ignored; then all units are Sharded.
  void forget_reductions();
  void abort();

  // --- slices of split weights
  // Unsharded until its last end_slice. `in_call`: of a module, not in backward.
  const at::Tensor& begin_slice(Unit& slice, bool in_call);
  void end_slice(Unit& slice) noexcept;
  void slice_gradient_arrived(Unit& slice, at::Tensor gradient);

  // --- what a script asks for, of the units that hold these parameters: units_on_request.cpp
  void set_stays_after_forward(const std::vector<int64_t>& params, bool stays);
  void set_stays_if_kept(const std::vector<int64_t>& params, bool stays);
  void set_stays_after_backward(const std::vector<int64_t>& params, bool stays);
  void set_gathers_in_backward(const std::vector<int64_t>& params, bool gathers);
  void unshard(const std::vector<int64_t>& params);  // begins; they stay gathered
  void await_unsharded(const std::vector<int64_t>& params);
  // Between passes; see Note [What unshard() shows]. show_read_only: those of `params` whose units stay
  // gathered. end_read_only: all show rows again. That, reshard and let_go throw ShardingError, at their end,
  // if one was written to.
  void show_read_only(const std::vector<int64_t>& params);
  void end_read_only();
  void reshard(const std::vector<int64_t>& params);  // what is read now is resharded after that
  // Between passes: reshards the units that stay. `trained`: only those with a parameter that requires a
  // gradient or has one.
  void let_go(bool trained);
  bool any_stays() const;

  // The first of `among` with a gradient kept under no_sync that has been neither reduced nor dropped since;
  // null: none.
  Parameter* unreduced(const std::vector<const Parameter*>& among) const;
  // The host waits for the copies of Note [Shards in host memory].
  void await_host_memory();
  void give_back_idle_memory();

  const Statistics& statistics() const { return statistics_; }
  void reset_statistics() { statistics_ = {}; }

 private:
  // --- transitions: Note [Unit states]
  enum class For { Pass, Script };
  void unshard(Unit& unit, For whom = For::Pass);
  void wait_unshard(Unit& unit);
  const std::shared_ptr<comm::Tensors>& second_of(const Unit& unit, For whom);  // to gather with now
  // `again`: by a recomputation.
  void begin_use(Unit& unit, bool again);  // unshards it if need be, and prefetches the next ones
  void end_use(Unit& unit) { --state_of(unit).running; }
  void need(Unit& unit, Need need);
  void reshard(Unit& unit);
  void release(Unit& unit) noexcept;         // what reshard does, also after an exception, whoever reads it
  void use(Unit& unit, bool again = false);  // any -> Unsharded, for a call or its backward
  void assert_state(const Unit& unit, bool holds, const char* transition) const;

  UnitState& state_of(const Unit& unit) { return states_[unit.index]; }
  const UnitState& state_of(const Unit& unit) const { return states_[unit.index]; }
  bool stale(const Unit& unit) const;
  void refuse_lost_write(const Parameter* written) const;
  std::vector<Unit*> units_with(const std::vector<int64_t>& params) const;
  void reshard_after_forward(Call& call, Unit& unit, bool failed);
  void reshard_after_backward(Unit& unit);
  void add_pending(Slot& slot, at::Tensor gradient) const;
  void reduce_or_keep(Unit& unit);  // submits pending gradients; under no_sync keeps them
  void reduce(Unit& unit);
  void await_room(size_t bytes);  // for a gradient about to be reduced

  const ModelShards& shards_;
  const StepState& step_;
  std::vector<UnitState> states_;  // by the unit's index
  Arena& arena_;
  GradientBuckets& buckets_;
  const std::shared_ptr<comm::Lane> lane_;
  const std::shared_ptr<comm::Lane> reductions_lane_;
  const std::shared_ptr<HybridReducer> hybrid_;
  size_t asked_bytes_ = 0;  // the budget that was asked for
  Depth depth_;
  Depth kept_depth_;  // for a forward that keeps all units for its backward
  PrefetchOrder forward_order_;
  PrefetchOrder backward_order_;
  struct Leaving {
    comm::Work reduction;
    size_t bytes;
  };
  std::vector<Leaving> reductions_;             // of this backward
  size_t left_ = 0;                             // how many of them have finished: Note [Gradients that leave]
  std::vector<faults::TaskNames::Part> parts_;  // of the slots of the unit that is being reduced
  bool read_only_ = false;                      // some parameters may be shown read-only
  Statistics statistics_;
};

}  // namespace osdp::runtime
