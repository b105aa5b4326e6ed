// CollectiveTracker: where this rank is in a lane's sequence of collectives, told by the lane's thread and
// read by the heartbeat (heartbeat.hpp). What the lanes of a process group share is their GroupHealth
// (group_health.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "faults/abortable.hpp"
#include "faults/task_name.hpp"
#include "faults/trail.hpp"

namespace osdp::runtime {

class GroupHealth;
struct Upcoming;  // of the lane that communicates, which alone knows what is in it

// The connection to another rank of the group failed: it has ended, or the network has.
struct ConnectionLost final : std::runtime_error {
  ConnectionLost(int64_t rank, const std::string& what) : std::runtime_error(what), peer(rank) {}
  int64_t peer;  // -1: not known
};

// Note [Collectives that are only enqueued]
// On an accelerator a lane's task has run when its collective is enqueued; whether it has ended, or waits for
// a rank that does not come, the device knows. So the lane hands over two questions about each task, and the
// heartbeat's thread asks them, ten times a second (events of the stream: the thread that trains waits for
// none of them). The rank's position is then the first task that is not over: it is under way once what was
// enqueued before it is done, and the rank computes until then.
struct Enqueued {
  std::function<bool()> begun, over;  // from any thread; they do not throw, and do not wait
};

class CollectiveTracker {
 public:
  explicit CollectiveTracker(GroupHealth& health) : health_(health) {}

  // What can be seen from outside at one moment.
  struct Snapshot {
    int64_t position = 0;  // collectives begun on the lane (on its device, if it only enqueues)
    int64_t asked = 0;     // collectives submitted to it
    int64_t progress = 0;  // messages that have arrived
    bool busy = false;     // one is under way
    TaskNamePtr task;      // the last one begun

    bool operator==(const Snapshot&) const = default;
  };

  // --- whoever submits to the lane
  void submitted() noexcept { asked_.fetch_add(1, std::memory_order_relaxed); }

  // --- the lane's thread
  void begin(TaskNamePtr task);
  void end();
  // The lane only enqueues: this is the task that ended last.
  void enqueued(Enqueued device);
  void forget_enqueued();  // its events may be destroyed by this thread alone, and end with the lane
  // Of the task that runs: Note [A digest in every message].
  uint64_t digest() const { return digest_; }
  // The task behind the one that runs, if one has been submitted; good until the running one ends.
  const Upcoming* upcoming() const { return upcoming_.load(std::memory_order_acquire); }
  void set_upcoming(const Upcoming* next) { upcoming_.store(next, std::memory_order_release); }  // any thread
  uint64_t next_digest(const TaskName& next) const { return digest_at(position_ + 1, next); }
  // Until `message`, from or to `peer`, is complete. Throws what interrupts it, and ConnectionLost where it
  // fails.
  void wait(const std::shared_ptr<AbortableWait>& message, int64_t peer);
  // For transports that wait by themselves: a message has arrived; and throw what interrupts the lane, if
  // anything.
  void moved() noexcept { progress_.fetch_add(1, std::memory_order_relaxed); }
  void check() const;

  // The tracker of the lane whose task runs on this thread; null elsewhere.
  static CollectiveTracker* here();
  class Here {
   public:
    explicit Here(CollectiveTracker* tracker);
    ~Here();

   private:
    CollectiveTracker* const outer_;  // of a task that has submitted this one, where lanes only enqueue
  };

 private:
  friend class GroupHealth;
  static constexpr size_t kMostEnqueued = 4096;
  struct OnDevice {
    int64_t position;
    TaskNamePtr task;
    Enqueued device;
    bool over = false;
  };

  static uint64_t digest_at(int64_t position, const TaskName& task);
  Snapshot snapshot();  // both with GroupHealth's mutex held
  void abort_message();

  GroupHealth& health_;
  std::atomic<int64_t> position_{0}, asked_{0}, progress_{0};
  std::atomic<const Upcoming*> upcoming_{nullptr};
  uint64_t digest_ = 0;  // the lane's thread alone
  // Under GroupHealth's mutex:
  bool busy_ = false;
  TaskNamePtr task_;
  std::shared_ptr<AbortableWait> current_;
  std::deque<OnDevice> on_device_;  // in their order; those that are over are let go of by the lane
  TaskNamePtr last_over_;
  Trail trail_;
};

}  // namespace osdp::runtime
