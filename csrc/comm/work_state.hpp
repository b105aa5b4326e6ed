// The state of a task, kept until it has ended and been awaited. Internal to lanes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "comm/left_out.hpp"
#include "comm/work.hpp"
#include "faults/group_health.hpp"
#include "faults/task_name.hpp"

namespace osdp::comm {

// Makes work enqueued on `stream` from now on wait for the event.
inline void block(const c10::Event& event, const c10::Stream& stream, CallSite where = CallSite::current()) {
  if (!left_out("wait", where)) event.block(stream);
}

struct Work::State {
  explicit State(std::shared_ptr<faults::GroupHealth> a) : health(std::move(a)) {}
  // Orders the submitter also if the task was never awaited.
  ~State() {
    if (event && !kept.empty()) block(*event, *submitter);
  }

  std::shared_ptr<faults::GroupHealth> health;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  double seconds = 0;
  std::exception_ptr error;
  faults::TaskNamePtr name;
  // Accelerators.
  std::shared_ptr<const c10::Event> event;
  std::optional<c10::Stream> submitter;
  std::vector<at::Tensor> kept;  // until the submitter has waited for the event

  void finish(std::exception_ptr e, double took = 0) {
    std::lock_guard lock(mutex);
    done = true;
    seconds = took;
    error = std::move(e);
    changed.notify_all();
  }

  // Once it is done, with the mutex held: makes the current stream wait, and releases what was kept.
  void order_after(CallSite where) {
    if (!event) return;
    const c10::impl::VirtualGuardImpl guard(submitter->device_type());
    const c10::Stream here = guard.getStream(submitter->device());
    block(*event, here, where);
    if (!kept.empty() && here != *submitter) block(*event, *submitter);
    kept.clear();
  }
};

}  // namespace osdp::comm
