// Watch: where this rank is in the sequence of collectives, told by the threads that know and read by the
// heartbeat (heartbeat.hpp), which can interrupt a wait that will not end.
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
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "runtime/errors.hpp"
#include "runtime/head.hpp"

namespace osdp::runtime {

// The connection to another rank of the group failed: it has ended, or the network has.
struct ConnectionLost final : std::runtime_error {
  ConnectionLost(int64_t rank, const std::string& what) : std::runtime_error(what), peer(rank) {}
  int64_t peer;
};

// Strings that the computing thread hands over by pointer: kept for ever, each once.
const std::string* interned(const std::string& text);

class Watch {
 public:
  // What can be seen from outside at one moment.
  struct Snapshot {
    int64_t position = 0;                // collectives begun on the lane
    int64_t asked = 0;                   // collectives submitted to it
    int64_t progress = 0;                // messages that have arrived
    bool busy = false;                   // one is under way
    std::string label;                   // of the last one begun: "blocks.3 all-gather"
    const std::string* place = nullptr;  // "forward of 'blocks.3'"; null outside of forward and backward
    // Passes that an exception ended: how many, where the last one did, and with what.
    int64_t raised = 0, raised_asked = 0;
    std::string raised_text;
  };

  // Why a lane's task ended with an exception.
  struct Trouble {
    std::exception_ptr error;
    std::string text;
    std::optional<ErrorKind> kind;
    bool connection = false;  // it is about the connection to `peer`: that rank knows the cause
    int64_t peer = -1;        // rank of the lane's group; -1: not known
  };

  // --- the thread that computes: a store or an addition each
  void at(const std::string* place) noexcept { place_.store(place, std::memory_order_relaxed); }
  void submitted() noexcept { asked_.fetch_add(1, std::memory_order_relaxed); }
  void raised(std::string text);  // an exception ended a forward or backward

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
  // The current task has thrown. Waits up to kExplainWait for the heartbeat's word on what happened where;
  // returns what this and all later tasks end with.
  std::exception_ptr explain(std::exception_ptr error);
  std::exception_ptr interruption() const;
  // For links that wait by themselves: a message has arrived; and throw what interrupts the lane, if
  // anything.
  void moved() noexcept { progress_.fetch_add(1, std::memory_order_relaxed); }
  void check() const;
  // Who `peer` of a group of `size` ranks is in the lane's own group; -1: that is a part of it, and not
  // known.
  int64_t rank_of(int64_t peer, int64_t size) const { return size == world_ ? peer : -1; }

  // The watch of the lane whose task runs on this thread; null elsewhere.
  static Watch* here();
  class Here {
   public:
    explicit Here(Watch* watch);
    ~Here();
  };

  // --- the heartbeat, and who waits for tickets
  Snapshot snapshot() const;
  std::optional<Trouble> trouble() const;
  // Ends the message that is waited for, and all later ones, with `why`. Later calls change nothing.
  void interrupt(std::exception_ptr why);
  void set_explained(bool by_heartbeat) { explained_ = by_heartbeat; }
  void set_world(int64_t world) { world_ = world; }

 private:
  static int tag_at(int64_t position, const std::string& label);

  mutable std::mutex mutex_;
  std::condition_variable told_;
  std::atomic<int64_t> position_{0}, asked_{0}, progress_{0};
  std::atomic<const std::string*> place_{nullptr};
  std::atomic<const Upcoming*> upcoming_{nullptr};
  std::atomic<bool> explained_{false};
  std::atomic<int64_t> world_{0};
  int tag_ = 0;  // the lane's thread alone
  // Under mutex_:
  bool busy_ = false;
  std::string label_;
  int64_t raised_ = 0, raised_asked_ = 0;
  std::string raised_text_;
  c10::intrusive_ptr<c10d::Work> current_;
  std::optional<Trouble> trouble_;
  std::exception_ptr interruption_;
};

}  // namespace osdp::runtime
