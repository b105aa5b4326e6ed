// StepState: what the parts of a step must agree on. Each field has one writer, named beside it.
#pragma once

#include <cstdint>

namespace osdp::runtime {

struct StepState {
  // --- the runtime
  int64_t rank = 0;        // among all ranks
  bool alone = false;      // there is no other
  bool installed = false;  // the gradients' hooks are this runtime's
  bool sync = true;        // false within no_sync

  // --- the forward pass
  int64_t epoch = 0;          // counts outermost forwards: what was gathered in an earlier one is stale
  bool grad_forward = false;  // the outermost forward records a graph
  bool root_forward = false;  // the outermost forward is the model's, not a submodule's by itself

  // --- the backward pass
  bool in_backward = false;
  int64_t backwards = 0;  // that have ended

  // --- both: see Note [Micro-batches between steps]
  bool accumulates = false;
};

}  // namespace osdp::runtime
