// A pool of reusable events of one device: creating an event costs a driver call that recording does not.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace osdp::comm {

class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  // Records an event on the stream. It returns to the pool with the last reference: a stream that waits for
  // an event no longer needs it once the wait has been enqueued. Thread-safe.
  std::shared_ptr<const c10::Event> record(const c10::Stream& stream) {
    c10::Event event = take(stream.device_type());
    event.record(stream);
    return {new c10::Event(std::move(event)), [pool = shared_from_this()](c10::Event* used) {
              const std::unique_ptr<c10::Event> owned(used);
              std::lock_guard lock(pool->mutex_);
              pool->idle_.push_back(std::move(*used));
            }};
  }

 private:
  c10::Event take(c10::DeviceType device) {
    std::lock_guard lock(mutex_);
    if (idle_.empty()) return c10::Event(device);
    c10::Event event = std::move(idle_.back());
    idle_.pop_back();
    return event;
  }

  std::mutex mutex_;
  std::vector<c10::Event> idle_;
};

}  // namespace osdp::comm
