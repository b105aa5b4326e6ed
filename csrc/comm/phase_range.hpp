// PhaseRange: a range in the profiler's timeline, named by module and phase. Without an active profiler it
// costs the test of a flag.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <string>
#include <thread>

namespace osdp::comm {

class PhaseRange {
 public:
  // Ends the previous range, if any.
  void begin(const std::string& module, const char* phase) {
    end();
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!callbacks) return;
    recording_ =
        std::make_unique<Recording>((module.empty() ? "model" : module) + " " + phase, std::move(*callbacks));
    recording_->function.before(recording_->name, -1);
  }
  void end() {
    if (!recording_) return;
    // A backward may end on a different thread than it began on.
    if (recording_->thread != std::this_thread::get_id()) recording_->function._setAsync();
    recording_.reset();
  }

 private:
  struct Recording {
    Recording(std::string n, at::StepCallbacks&& callbacks)
        : name(std::move(n)), function(std::move(callbacks)) {}
    std::string name;  // `function` only points to it
    at::RecordFunction function;
    std::thread::id thread = std::this_thread::get_id();
  };
  std::unique_ptr<Recording> recording_;
};

}  // namespace osdp::comm
