// Watch: where this rank is in a lane's sequence of collectives, told by the lane's thread and read by the
// heartbeat (heartbeat.hpp). What the lanes of a process group share is their Alarm (alarm.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/head.hpp"
#include "runtime/peers.hpp"
#include "runtime/task_name.hpp"

namespace osdp::runtime {

class Alarm;

// The connection to another rank of the group failed: it has ended, or the network has.
struct ConnectionLost final : std::runtime_error {
  ConnectionLost(int64_t rank, const std::string& what) : std::runtime_error(what), peer(rank) {}
  int64_t peer;  // -1: not known
};

class Watch {
 public:
  explicit Watch(Alarm& alarm) : alarm_(alarm) {}

  // What can be seen from outside at one moment.
  struct Snapshot {
    int64_t position = 0;  // collectives begun on the lane
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
  // Of the task that runs: Note [A digest in every message].
  uint64_t digest() const { return digest_; }
  // The task behind the one that runs, if one has been submitted; good until the running one ends.
  const Upcoming* upcoming() const { return upcoming_.load(std::memory_order_acquire); }
  void set_upcoming(const Upcoming* next) { upcoming_.store(next, std::memory_order_release); }  // any thread
  uint64_t digest_of(const Upcoming& next) const { return digest_at(position_ + 1, *next.name); }
  // Until `message`, from or to `peer`, is complete. Throws what interrupts it, and ConnectionLost where it
  // fails.
  void wait(const std::shared_ptr<Peers::Message>& message, int64_t peer);
  // For links that wait by themselves: a message has arrived; and throw what interrupts the lane, if
  // anything.
  void moved() noexcept { progress_.fetch_add(1, std::memory_order_relaxed); }
  void check() const;

  // The watch of the lane whose task runs on this thread; null elsewhere.
  static Watch* here();
  class Here {
   public:
    explicit Here(Watch* watch);
    ~Here();
  };

 private:
  friend class Alarm;
  static uint64_t digest_at(int64_t position, const TaskName& task);
  Snapshot snapshot() const;  // both with the alarm's mutex held
  void abort_message();

  Alarm& alarm_;
  std::atomic<int64_t> position_{0}, asked_{0}, progress_{0};
  std::atomic<const Upcoming*> upcoming_{nullptr};
  uint64_t digest_ = 0;  // the lane's thread alone
  // Under the alarm's mutex:
  bool busy_ = false;
  TaskNamePtr task_;
  std::shared_ptr<Peers::Message> current_;
};

}  // namespace osdp::runtime
