// Unit: parameters that are gathered and reduced together, and the calls of modules that read them. Its state
// within a step is UnitScheduler's (step/unit_state.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "faults/errors.hpp"
#include "faults/task_name.hpp"
#include "runtime/store/shard_groups.hpp"
#include "runtime/store/shard_store.hpp"

namespace torch::autograd {
struct Node;
}

namespace osdp::runtime {

struct Call;
class WholeCopy;

// Set when the model is sharded, constant afterwards.
struct Unit {
  std::string name;
  size_t index = 0;  // among the model's units
  Mode mode = Mode::FullShard;
  const ShardGroups* shard_groups = nullptr;  // it is gathered and reduced over these ranks
  std::vector<Slot> slots;
  faults::TaskNames gathers, reductions, averages;  // averages: between lines
  // The module calls that gather it in every forward (methods do not count). Empty for a slice, which its
  // matrix product acquires.
  std::vector<Call*> calls;

  size_t bytes() const {
    size_t sum = 0;
    for (const Slot& slot : slots) sum += slot.bytes();
    return sum;
  }
  // Changes with every in-place write to its parameters between steps.
  int64_t version() const {
    int64_t sum = 0;
    for (const Slot& slot : slots) sum += slot.owner().version();
    return sum;
  }
  bool frozen_part() const {
    for (const Slot& slot : slots)
      if (!slot.owner().tensor().requires_grad()) return true;
    return false;
  }
};

// Note [Frozen parameters]
// Backward no longer reads a trainable parameter once its gradient has been accumulated. A frozen parameter
// has no gradient that would signal this: it is read until the last node that the call has added to the graph
// has run. (The gradient of an input would come too late: it is complete when all that reads the input has
// run.) So each invocation of a call whose units have frozen parameters is tracked separately: its backward
// begins at the first gradient of an output and ends when the nodes have run from which gradients leave the
// call. Every other node of the call runs before one of these.
struct Invocation {
  int64_t backward = -1;  // the backward in which it is in progress; -1: none; see StepState::backwards
  uint64_t first = 0;     // sequence number of the call's first node
  std::vector<torch::autograd::Node*> last;  // gradients leave through these; none: ends with the backward
  int64_t left = 0;                          // those of this backward that have not run yet
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
  bool hold = false;    // inside a recomputed block whose parameters are held for the backward
  bool former = false;  // of units that exist no longer: Note [Units that change]

  void forget_units() {
    units.clear(), slices.clear(), copies.clear();
    former = true;
  }
  void check_current() const {
    OSDP_CHECK(
        !former, Sharding, "OSDP: ", module.empty() ? "the model" : "'" + module + "'",
        " travels in other units since the model's first training forward, and this is a function or a "
        "graph of before: take the function from the model again, and run backward before that forward");
  }
};

}  // namespace osdp::runtime
