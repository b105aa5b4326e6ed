// Watch: where this rank is in a lane's sequence of collectives, told by the lane's thread and read by the
// heartbeat (heartbeat.hpp). What the lanes of a process group share is their Alarm (alarm.hpp).
//
// Note [A digest in every message]
// All ranks must run the same collectives in the same order; a rank that takes another branch would leave the
// others waiting, or exchange one unit's bytes for another's. So each collective has a position (#1, #2, ...
// since the lane was made) and a label (unit and phase), and a hash of both is the tag of its messages on the
// ring: messages of different collectives never match, at no cost, since every message has a tag anyway.
// Ranks that differ then wait, both; the heartbeat of a rank that waits for half a second compares positions
// and labels, and both ranks end with an OrderError that says where each is.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

#include "runtime/head.hpp"

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
    std::string label;     // of the last one begun: "blocks.3 all-gather"

    bool operator==(const Snapshot&) const = default;
  };

  // --- whoever submits to the lane
  void submitted() noexcept { asked_.fetch_add(1, std::memory_order_relaxed); }

  // --- the lane's thread
  void begin(const std::string& label);
  void end();
  int tag() const { return tag_; }
  // The task behind the one that runs, if one has been submitted; good until the running one ends.
  const Upcoming* upcoming() const { return upcoming_.load(std::memory_order_acquire); }
  void set_upcoming(const Upcoming* next) { upcoming_.store(next, std::memory_order_release); }  // any thread
  int tag_of(const Upcoming& next) const { return tag_at(position_ + 1, next.label); }
  // Until `work`, a message from or to `peer`, is complete. Throws what interrupts it, and what `work`
  // throws.
  void wait(const c10::intrusive_ptr<c10d::Work>& work, int64_t peer);
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
  static int tag_at(int64_t position, const std::string& label);
  Snapshot snapshot() const;  // both with the alarm's mutex held
  void abort_message();

  Alarm& alarm_;
  std::atomic<int64_t> position_{0}, asked_{0}, progress_{0};
  std::atomic<const Upcoming*> upcoming_{nullptr};
  int tag_ = 0;  // the lane's thread alone
  // Under the alarm's mutex:
  bool busy_ = false;
  std::string label_;
  c10::intrusive_ptr<c10d::Work> current_;
};

}  // namespace osdp::runtime
