// StepState: the state that the parts of a step share. Each field has one writer, named above it.
#pragma once

#include <cstdint>
#include <string>

#include "faults/group_health.hpp"
#include "runtime/store/shard_store.hpp"

namespace osdp::runtime {

struct StepState {
  // --- the runtime
  int64_t rank = 0;                   // among all ranks
  const faults::GroupHealth& health;  // of their lane
  bool alone = false;                 // the only rank
  bool installed = false;             // the gradient hooks are active
  bool sync = true;                   // false within no_sync
  bool part = false;                  // of another model, which runs other modules before this one's backward

  // --- the forward pass
  int64_t epoch = 0;          // counts outermost forwards: units gathered in an earlier one are stale
  bool grad_forward = false;  // the outermost forward records a graph
  bool root_forward = false;  // the outermost forward is the model's, not that of a submodule on its own

  // --- the backward pass
  bool in_backward = false;
  int64_t backwards = 0;  // backwards that have ended

  // --- both: see Note [Micro-batches between steps]
  bool accumulates = false;

  // What errors call this rank.
  std::string me() const { return health.names()(rank); }
  // Whether backward reduces the parameter's gradient.
  bool syncs(const Parameter& param) const { return sync && param.sync(); }
};

}  // namespace osdp::runtime
