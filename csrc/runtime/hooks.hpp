// Where autograd tells the runtime what happens. All hooks are C++: no GIL, no Python frame.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "runtime/shard_store.hpp"
#include "runtime/unit.hpp"

namespace osdp::runtime {

class Runtime;

// Makes the parameter's gradient node (the parameter must show what its gradients look like: be inside, or
// whole) and hooks it before and after it accumulates.
void install_gradient_hooks(Runtime& runtime, Parameter& param);

// When the first gradient of an output arrives, the backward of that call begins. `invocation` may be null.
void watch_outputs(Runtime& runtime, const Call& call, const std::vector<at::Tensor>& outputs,
                   const std::shared_ptr<Invocation>& invocation);

// When an input's gradient is complete, the backward of that call is over.
void watch_inputs(Runtime& runtime, const Call& call, const std::vector<at::Tensor>& inputs,
                  const std::shared_ptr<Invocation>& invocation);

// Arranges for Runtime::finish_backward when the running graph task ends, or Runtime::abort when it is
// destroyed without that (engine callbacks do not run after an exception; what they captured is destroyed).
void at_end_of_graph_task(Runtime& runtime);

}  // namespace osdp::runtime
