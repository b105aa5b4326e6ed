// UnitState: what UnitScheduler, which alone changes it, knows of a unit within a step.
//
// Note [Unit states]
// A unit is in one phase. Calls that read it are counted, and what else needs it gathered is a set of Needs.
//
//   transition            from                          to           changes
//   unshard               Sharded; Unsharded and stale  Unsharding
//   wait_unshard          Unsharding                    Unsharded
//   begin_call, _slice    Unsharded                     same         running + 1
//   end_call, _slice      any, running > 0              same         running - 1
//   need Backward, Script Unsharding, Unsharded         same         needs + it
//   need another          any                           same         needs + it
//   end_call_backward     any, readers > 0              same         readers - 1
//   reshard               any, running = 0              Sharded      needs - Backward, Script
//   after an exception    any                           Sharded      the same; readers = 0 after a backward's
//
// Each asserts what it comes from. When a unit is resharded:
//
//   at the end of            unless
//   a call in forward        running; needs Gradients, Graph, Script, Backward; other calls of it are to come
//   a call in recomputation  running; needs Gradients, Graph; the call holds it; the script wants it to stay;
//                            Note [What a recomputation uses again]
//   the forward              needs Backward, Script
//   its backward             running, readers, gradients are to come; needs Graph, Recomputation
//   the backward of all      running; needs Graph, Script; Backward, if this backward did not reach it
//
// and where the script asks, see Note [Units that stay gathered].
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/work.hpp"
#include "runtime/store/arrivals.hpp"
#include "runtime/store/unit.hpp"

namespace osdp::runtime {

// Why a unit is to stay gathered although no call that runs reads it.
enum class Need : uint8_t {
  Backward = 1,       // the forward keeps it for its backward: SHARD_GRAD_OP, or its last unit
  Gradients = 2,      // a backward has reached it, and gradients of its parameters are to come
  Script = 4,         // Note [Units that stay gathered]: whatever ends, until it is next resharded
  Graph = 8,          // Note [Backward of a backward]
  Recomputation = 16  // Note [Functions that are recomputed]: for good
};

class Needs {
 public:
  bool has(Need need) const { return (set_ & bit(need)) != 0; }
  void add(Need need) { set_ |= bit(need); }
  void drop(Need need) { set_ &= static_cast<uint8_t>(~bit(need)); }

 private:
  static constexpr uint8_t bit(Need need) { return static_cast<uint8_t>(need); }
  uint8_t set_ = 0;
};

struct UnitState {
  enum class Phase { Sharded, Unsharding, Unsharded };

  Phase phase = Phase::Sharded;
  comm::Work unsharding;  // while Unsharding
  int64_t epoch = -1;     // of the outermost forward in which it was last gathered; see StepState::epoch
  int64_t version = -1;   // of its parameters, then
  int64_t running = 0;    // calls in progress, and products of a slice, that read it
  int64_t readers = 0;    // calls in backward that may still read its frozen parameters; see Invocation
  Needs needs;
  std::vector<const Call*> used_by;  // the calls, each once, that used it since it was gathered
  Arrivals gradients;
  // FULL_SHARD_HPZ: what was gathered between hosts, in the forward of that epoch or in the backward since,
  // until the unit's backward is over. Null: none is kept.
  std::shared_ptr<comm::Tensors> second;
  int64_t second_epoch = -1;
  int64_t reduced = -1;  // the backward in which it was reduced last; see StepState::backwards

  // --- what the script has set, see Note [Units that stay gathered]
  std::optional<bool> stays_after_forward;
  bool stays_if_kept = false;  // until that is set: where the mode keeps it for the backward
  bool stays_after_backward = false;
  bool gathers_in_backward = true;
};

}  // namespace osdp::runtime
