// UnitState: what UnitScheduler, which alone changes it, knows of a unit within a step.
//
// Note [Unit states]
//   Sharded --unshard--> Unsharding --wait_unshard--> Unsharded --reshard--> Sharded
// A gathered unit is not resharded after a forward call if another call is using it, if its backward is under
// way, if it is kept for the backward (SHARD_GRAD_OP, or the last unit of the forward), if it is held from
// recomputation to backward, or if another call of the same unit is still to come in this forward.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/work.hpp"
#include "runtime/store/arrivals.hpp"
#include "runtime/store/unit.hpp"

namespace osdp::runtime {

struct UnitState {
  enum class Phase { Sharded, Unsharding, Unsharded };

  Phase phase = Phase::Sharded;
  comm::Work unsharding;  // while Unsharding
  int64_t epoch = -1;     // of the outermost forward in which it was last gathered; see StepState::epoch
  int64_t running = 0;    // forward calls in progress that use it
  std::vector<const Call*> used_by;  // the calls, each once, that used it since it was gathered
  bool in_backward = false;
  int64_t readers = 0;  // calls in backward that may still read its frozen parameters; see Invocation
  bool keep = false;
  bool again = false;       // see Note [Backward of a backward]
  bool recomputed = false;  // see Note [Functions that are recomputed]
  Arrivals gradients;
  int64_t reduced = -1;  // the backward in which it was reduced last; see StepState::backwards
};

}  // namespace osdp::runtime
