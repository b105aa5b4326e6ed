// A lane that is a stream: on accelerators. See Note [Memory that two streams use].
#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>
#include <utility>

#include "comm/backend_memory.hpp"
#include "comm/event_pool.hpp"
#include "comm/lane_kinds.hpp"
#include "comm/left_out.hpp"
#include "comm/work_state.hpp"

namespace osdp::comm {
namespace {

// Wraps an event for the tracker, which polls it. Device errors count as passed here; the computing thread
// raises them.
std::function<bool()> passed(std::shared_ptr<const c10::Event> event) {
  return [event = std::move(event)] {
    try {
      return event->query();
    } catch (const std::exception&) {
      return true;
    }
  };
}

// The task of a stream lane that is running on this thread.
thread_local Work::State* running = nullptr;

class StreamLane final : public Lane {
 public:
  StreamLane(std::shared_ptr<faults::GroupHealth> health, c10::Device device)
      : Lane(std::move(health)),
        device_(device),
        guard_(device.type()),
        stream_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)) {}

  ~StreamLane() override { tracker_.forget_enqueued(); }

  Work submit(faults::TaskNamePtr name, Task task, EarlySend) override {
    auto state = std::make_shared<Work::State>(health_);
    tracker_.submitted();
    const c10::Stream current = guard_.getStream(device_);
    // For a task submitted by another lane's task, too, memory belongs to the computing stream.
    state->submitter = running ? *running->submitter : current;
    if (!broken_) {
      Work::State* const outer = std::exchange(running, state.get());
      try {
        const auto before = events_->record(current);
        block(*before, stream_);
        c10::StreamGuard on_lane(stream_);
        broken_ = run_task(name, task, tracker_, *health_);
        state->event = events_->record(stream_);
        if (!broken_ && health_->explained()) tracker_.enqueued({passed(before), passed(state->event)});
      } catch (...) {
        broken_ = std::current_exception();
      }
      running = outer;
    }
    state->finish(broken_);
    return Work(std::move(state));
  }

  bool keeps() const override { return true; }
  void synchronize() override {
    stream_.synchronize();
    health_->check();
  }

 private:
  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  // High priority: its kernels are few and the computation waits for them.
  c10::Stream stream_;
  const std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>();
  std::exception_ptr broken_;
};

}  // namespace

std::shared_ptr<Lane> stream_lane(std::shared_ptr<faults::GroupHealth> health, c10::Device device) {
  return std::make_shared<StreamLane>(std::move(health), device);
}

void Lane::keep(at::Tensor tensor, CallSite where) {
  if (running && tensor.defined() && !tensor.is_cpu() && !left_out("hold", where))
    running->kept.push_back(std::move(tensor));
}

at::Tensor Lane::empty(at::IntArrayRef sizes, const at::TensorOptions& options, const BackendMemory* memory) {
  at::Tensor made;
  {
    const SubmittersMemory here;
    made = memory ? memory->empty(c10::multiply_integers(sizes), options) : at::empty(sizes, options);
  }
  keep(made);
  return made;
}

Lane::SubmittersMemory::SubmittersMemory() {
  if (!running) return;
  there_.reset_stream(*running->submitter);
  unseen_.emplace(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
}

}  // namespace osdp::comm
