// The autograd hooks that drive the runtime. All are C++: no GIL, no Python frame.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/store/shard_store.hpp"
#include "runtime/store/unit.hpp"

namespace osdp::runtime {

class BackwardPass;

// Note [A backward that ends elsewhere]
// On an accelerator autograd's device thread runs the backward. If something throws there, the thread that
// called backward receives the exception and continues while the device thread is still destroying the graph
// task, and with it the guard that restores the model. Until then parameters are unsharded: zero_grad would
// miss their gradients, and a forward would believe that the backward is still running. So the exception of a
// backward is delayed until every guard has finished (autograd_errors.py), and a forward waits for the guard
// too.
class BackwardEnd {
 public:
  void tell() {
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  // Waits at most 60 s: as long as something keeps a failed graph alive, the guard is not destroyed.
  void await() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [this] { return over_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
};

// Creates the parameter's AccumulateGrad node and adds hooks before and after it. The parameter must show the
// shape of its gradients: it is whole or shows its full shape. The hooks do not keep the model alive.
void install_gradient_hooks(const std::shared_ptr<BackwardPass>& pass, Parameter& param);

// An AccumulateGrad node runs on the stream that was current when it was created, possibly that of
// fully_shard. Moves it to the current stream; otherwise gradients and their reductions would need needless
// synchronization between streams. The parameter must show the shape of its gradients.
void follow_stream(Parameter& param);

// Hooks the outputs: the backward of the call begins at the first gradient of an output. `first_node`: the
// sequence number of the first node that the call added to the graph. `invocation` may be null. The graph
// keeps the model alive.
void watch_outputs(const std::shared_ptr<BackwardPass>& pass, const Call& call,
                   const std::vector<at::Tensor>& outputs, uint64_t first_node,
                   const std::shared_ptr<Invocation>& invocation);

// Finds the nodes that the call has added between its first one and `outputs`, and hooks those from which
// gradients leave the call: its backward ends when they have run.
void watch_end(const std::shared_ptr<BackwardPass>& pass, const Call& call,
               const std::vector<at::Tensor>& outputs, const std::shared_ptr<Invocation>& invocation);

// Arranges for BackwardPass::finish to run when the running graph task ends, or BackwardPass::abort when the
// task is destroyed without that (after an exception the engine does not run callbacks, but destroys their
// captures).
std::shared_ptr<BackwardEnd> at_end_of_graph_task(std::shared_ptr<BackwardPass> pass);

}  // namespace osdp::runtime
