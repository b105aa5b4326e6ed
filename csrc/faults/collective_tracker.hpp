// CollectiveTracker: this rank's position in a lane's sequence of collectives, written by the lane's thread
// and read by the heartbeat (heartbeat.hpp) through the GroupHealth that the lanes of a process group share
// (group_health.hpp), which also interrupts them. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "faults/abortable.hpp"
#include "faults/task_name.hpp"
#include "faults/trail.hpp"

namespace osdp::comm {
struct Upcoming;  // early_send.hpp
}

namespace osdp::faults {

// The connection to another rank of the group failed, because the rank ended or the network failed.
struct ConnectionLost final : std::runtime_error {
  ConnectionLost(int64_t rank, const std::string& what) : std::runtime_error(what), peer(rank) {}
  int64_t peer;  // -1: not known
};

// Note [Collectives that are only enqueued]
// On an accelerator a lane's task returns when its collective has been enqueued; only the device knows
// whether the collective has ended or waits for a rank that does not come. So the lane passes two queries
// about each task (stream events), which the heartbeat's thread polls ten times a second; the computing
// thread does not wait for them. The rank's position is then the first task that is not over. That task
// counts as in progress once everything enqueued before it is done; until then the rank computes.
struct Enqueued {
  std::function<bool()> begun, over;  // called from any thread; must neither throw nor block
};

class CollectiveTracker {
 public:
  // The state visible to the heartbeat at one moment.
  struct Snapshot {
    int64_t position = 0;  // collectives begun on the lane (on its device, if it only enqueues)
    int64_t asked = 0;     // collectives submitted to it
    int64_t progress = 0;  // messages that have arrived
    bool busy = false;     // one is in progress
    TaskNamePtr task;      // the last one begun

    bool operator==(const Snapshot&) const = default;
  };

  // --- the submitting thread
  void submitted() noexcept { asked_.fetch_add(1, std::memory_order_relaxed); }

  // --- the lane's thread
  void begin(TaskNamePtr task);
  void end();
  // For a lane that only enqueues: the queries of the task that has just returned.
  void enqueued(Enqueued device);
  void forget_enqueued();  // only this thread may destroy its events; called when the lane ends
  // The digest of the running task: Note [A digest in every message].
  uint64_t digest() const { return digest_; }
  // The task after the running one, if it has been submitted already; valid until the running one ends.
  const comm::Upcoming* upcoming() const { return upcoming_.load(std::memory_order_acquire); }
  void set_upcoming(const comm::Upcoming* next) {
    upcoming_.store(next, std::memory_order_release);
  }  // any thread
  uint64_t next_digest(const TaskName& next) const { return digest_at(position_ + 1, next); }
  // Blocks until `message`, from or to `peer`, is complete. Throws the exception that interrupted it, or
  // ConnectionLost if it fails.
  void wait(const std::shared_ptr<AbortableWait>& message, int64_t peer);
  // For transports with their own waiting loops. moved(): a message has arrived. check(): throws the
  // exception that interrupted the lane, if any.
  void moved() noexcept { progress_.fetch_add(1, std::memory_order_relaxed); }
  void check() const;

  // --- GroupHealth
  Snapshot snapshot();
  // Ends the message being waited for, and all later ones, with `why`.
  void interrupt(std::exception_ptr why);
  // For lanes that only enqueue, see Note [Ranks that go apart unnoticed] and Trail.
  TrailMark trail_mark() const;
  std::optional<uint64_t> trail_digest(int64_t position) const;
  TrailPiece trail_piece(int64_t after, int64_t to) const;

  // The tracker of the lane whose task runs on this thread; null elsewhere.
  static CollectiveTracker* here();
  class Here {
   public:
    explicit Here(CollectiveTracker* tracker);
    ~Here();

   private:
    CollectiveTracker* const outer_;  // the tracker of the task that submitted this one, if any
  };

 private:
  static constexpr size_t kMostEnqueued = 4096;
  struct OnDevice {
    int64_t position;
    TaskNamePtr task;
    Enqueued device;
    bool over = false;
  };

  static uint64_t digest_at(int64_t position, const TaskName& task);

  std::atomic<int64_t> position_{0}, asked_{0}, progress_{0};
  std::atomic<const comm::Upcoming*> upcoming_{nullptr};
  uint64_t digest_ = 0;  // used by the lane's thread only
  mutable std::mutex mutex_;
  // Under mutex_:
  std::exception_ptr interruption_;
  bool busy_ = false;
  TaskNamePtr task_;
  std::shared_ptr<AbortableWait> current_;
  std::deque<OnDevice> on_device_;  // in order; the lane's thread removes those that are over
  TaskNamePtr last_over_;
  Trail trail_;
};

}  // namespace osdp::faults
