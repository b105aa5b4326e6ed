// Where autograd tells the runtime what happens. All hooks are C++: no GIL, no Python frame.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/store/shard_store.hpp"
#include "runtime/store/unit.hpp"

namespace osdp::runtime {

class BackwardPass;

// Note [A backward that ends elsewhere]
// On an accelerator autograd's own thread runs the backward. When something throws there, the thread that
// called backward gets the exception and goes on, while the other still destroys the graph task, and with it
// the guard that puts the model back. Parameters are unsharded until then: zero_grad would miss their
// gradients, and a forward would take the backward to be under way still. So backward's exception is held
// back until every guard has done its work (backward_errors.py), and a forward waits for it too.
class BackwardEnd {
 public:
  void tell() {
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  // Whoever keeps a failed graph alive keeps the guard from ending: not for ever.
  void await() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [this] { return over_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
};

// Makes the parameter's gradient node (the parameter must show what its gradients look like: its full shape,
// or be whole) and hooks it before and after it accumulates. The hooks do not keep the model alive.
void install_gradient_hooks(const std::shared_ptr<BackwardPass>& pass, Parameter& param);

// The node runs on the stream that was current when it was made: while the model was sharded, maybe. Moves it
// to the one that trains now, or gradients and their reductions would cross streams for nothing. The
// parameter shows what its gradients look like.
void follow_stream(Parameter& param);

// When the first gradient of an output arrives, the backward of that call begins. `invocation` may be null.
// The graph keeps the model alive.
void watch_outputs(const std::shared_ptr<BackwardPass>& pass, const Call& call,
                   const std::vector<at::Tensor>& outputs, const std::shared_ptr<Invocation>& invocation);

// When an input's gradient is complete, the backward of that call is over.
void watch_inputs(const std::shared_ptr<BackwardPass>& pass, const Call& call,
                  const std::vector<at::Tensor>& inputs, const std::shared_ptr<Invocation>& invocation);

// Arranges for BackwardPass::finish when the running graph task ends, or BackwardPass::abort when it is
// destroyed without that (engine callbacks do not run after an exception; what they captured is destroyed).
std::shared_ptr<BackwardEnd> at_end_of_graph_task(std::shared_ptr<BackwardPass> pass);

}  // namespace osdp::runtime
