// Unit: parameters that are gathered and reduced together, and their state in a step.
#pragma once

#include <string>
#include <vector>

#include "comm/lane.hpp"
#include "runtime/store/arrivals.hpp"
#include "runtime/store/shard_groups.hpp"
#include "runtime/store/shard_store.hpp"

namespace osdp::runtime {

struct Call;
class WholeCopy;

// Note [Unit states]
//   Sharded --unshard--> Unsharding --wait_unshard--> Unsharded --reshard--> Sharded
// A gathered unit is not resharded after a forward call if another call is using it, if its backward is under
// way, if it is kept for the backward (SHARD_GRAD_OP, or the last unit of the forward), if it is held from
// recomputation to backward, or if another call of the same unit is still to come in this forward.
class Unit {
 public:
  enum class State { Sharded, Unsharding, Unsharded };

  // Set when the model is sharded, constant afterwards.
  std::string name;
  Mode mode = Mode::FullShard;
  const ShardGroups* shard_groups = nullptr;  // it is gathered and reduced over these ranks
  std::vector<Slot> slots;
  faults::TaskNames gathers, reductions, averages;  // averages: HYBRID_SHARD's, between lines
  // The module calls that gather it in every forward (methods do not count). Empty for a slice, which its
  // matrix product acquires.
  std::vector<Call*> calls;

  State state() const { return state_; }
  size_t bytes() const {
    size_t sum = 0;
    for (const Slot& slot : slots) sum += slot.bytes();
    return sum;
  }
  bool frozen_part() const {
    for (const Slot& slot : slots)
      if (!slot.owner().tensor().requires_grad()) return true;
    return false;
  }

 private:
  // State within a step: only UnitScheduler reads and changes it.
  friend class UnitScheduler;

  State state_ = State::Sharded;
  comm::Work unsharding_;   // while Unsharding
  int64_t epoch_ = -1;      // of the outermost forward in which it was last gathered; see StepState::epoch
  int64_t running_ = 0;     // forward calls in progress that use it
  int64_t calls_seen_ = 0;  // distinct calls that used it since it was gathered, of calls.size()
  bool in_backward_ = false;
  int64_t readers_ = 0;  // calls in backward that may still read its frozen parameters; see Invocation
  bool keep_ = false;
  bool held_ = false;
  bool again_ = false;       // see Note [Backward of a backward]
  bool recomputed_ = false;  // see Note [Functions that are recomputed]
  Arrivals gradients_;
  int64_t reduced_ = -1;  // the backward in which it was reduced last; see StepState::backwards
};

// Note [Frozen parameters]
// Backward no longer reads a trainable parameter once its gradient has been accumulated. A frozen parameter
// has no gradient that would signal this: it is read until the gradients of its call's inputs are computed.
// So each invocation of a call whose units have frozen parameters is tracked separately: its backward begins
// at the first gradient of an output and ends with the gradients of its inputs, which may be the outputs of
// another call of the same unit.
struct Invocation {
  int64_t backward = -1;  // the backward in which it is in progress; -1: none; see StepState::backwards
};

// A module whose call gathers units; or one of its methods other than forward, which a step may or may not
// call.
struct Call {
  std::string module;  // or "module.method()"
  bool method = false;
  // The computing thread's position as reported to the other ranks: see GroupHealth::at.
  const std::string* in_forward = nullptr;
  const std::string* in_recomputation = nullptr;
  const std::string* in_backward = nullptr;
  std::vector<Unit*> units;
  std::vector<Unit*> slices;  // of a split module: acquired by its matrix product, one at a time
  std::vector<WholeCopy*> copies;
  bool root = false;
  bool hold = false;       // inside a recomputed block whose parameters are held for the backward
  std::vector<char> seen;  // per unit: this call has used it since it was gathered
};

}  // namespace osdp::runtime
