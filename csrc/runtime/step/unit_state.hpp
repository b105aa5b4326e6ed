// UnitState: what UnitScheduler, which alone changes it, knows of a unit within a step.
//
// Note [Unit states]
//   Sharded --unshard--> Unsharding --wait_unshard--> Unsharded --reshard--> Sharded
// A gathered unit is not resharded after a forward call if another call is using it, if its backward is under
// way, if it is kept for the backward (SHARD_GRAD_OP, or the last unit of the forward), if it is held from
// recomputation to backward, if another call of the same unit is still to come in this forward, or if the
// script wants it to stay (Note [Units that stay gathered]).
#pragma once

#include <cstdint>
#include <optional>
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

  // --- see Note [Units that stay gathered]
  bool stays = false;    // whatever forward or backward ends, until it is next resharded
  int64_t version = -1;  // of its parameters, when it was last gathered
  // What the script has set.
  std::optional<bool> stays_after_forward;
  bool stays_if_kept = false;  // until that is set: where the mode keeps it for the backward
  bool stays_after_backward = false;
  bool gathers_in_backward = true;
};

}  // namespace osdp::runtime
