// Unit: what is gathered and reduced together, and its state.
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
// Why a gathered unit is not released after a forward call: it runs in another call, its backward is under
// way, it is kept for the backward (SHARD_GRAD_OP, or the unit that ends forward), it is held from
// recomputation to backward, or another call of the same unit is still to come in this forward.
class Unit {
 public:
  enum class State { Sharded, Unsharding, Unsharded };

  // What it is: set when the model is sharded.
  std::string name;
  Mode mode = Mode::FullShard;
  const ShardGroups* shard_groups = nullptr;  // the ranks that it is gathered from and reduced over
  std::vector<Slot> slots;
  TaskNames gathers, reductions, averages;  // averages: HYBRID_SHARD's, between lines
  // Module calls that gather it (of every forward; methods do not count); empty for a slice, which its
  // product asks for.
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
  // Where it is in a step: UnitScheduler alone reads and changes it.
  friend class UnitScheduler;

  State state_ = State::Sharded;
  Work unsharding_;         // while Unsharding
  int64_t epoch_ = -1;      // of the outermost forward in which it was last gathered; see StepState::epoch
  int64_t running_ = 0;     // forward calls under way that use it
  int64_t calls_seen_ = 0;  // distinct calls that used it since it was gathered, of calls.size()
  bool in_backward_ = false;
  int64_t readers_ = 0;  // calls under backward that may still read its frozen parameters; see Invocation
  bool keep_ = false;
  bool held_ = false;
  bool again_ = false;       // see Note [Backward of a backward]
  bool recomputed_ = false;  // see Note [Functions that are recomputed]
  Arrivals gradients_;
  int64_t reduced_ = -1;  // the backward in which it was reduced last; see StepState::backwards
};

// Note [Frozen parameters]
// A trainable parameter is last read before its gradient is made. A frozen one has no gradient to tell: it is
// read until the gradients of its call's inputs are made. So each call of units with frozen parameters is
// followed by itself: its backward begins at the first gradient of an output and ends with the gradients of
// its inputs, which may be the outputs of another call of the same unit.
struct Invocation {
  int64_t backward = -1;  // the backward in which it has begun and not ended; see StepState::backwards
};

// A module whose call gathers units; or a method of one, other than forward, which somebody may call or not.
struct Call {
  std::string module;  // or "module.method()"
  bool method = false;
  // Where the computing thread is, for the other ranks: see GroupHealth::at.
  const std::string* in_forward = nullptr;
  const std::string* in_recomputation = nullptr;
  const std::string* in_backward = nullptr;
  std::vector<Unit*> units;
  std::vector<Unit*> slices;  // of a split module: asked for by its product, one at a time
  std::vector<WholeCopy*> copies;
  bool root = false;
  bool hold = false;       // inside a recomputed block whose parameters are held for the backward
  std::vector<char> seen;  // per unit: this call has used it since it was gathered
};

}  // namespace osdp::runtime
