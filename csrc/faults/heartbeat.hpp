// Heartbeat: a thread per process group that tells the other ranks where this one is, and finds out why it
// waits.
//
// Note [Heartbeats]
// While ranks move nothing is told: a tick every 100 ms compares a few counters of the GroupHealth. A rank
// that stands still for a quarter of a second, inside a forward or backward or waiting on the lane, puts its
// RankStatus into the process group's store, and again every half second: so it is known to live even when
// its main thread sleeps for ever. Outside of a pass (between steps, at the end of the script) it does so
// once. A rank that waits reads what the others told, and ends its wait when their statuses explain it (see
// Note [Who is at fault]): with an error that this rank could have raised itself, not a hang. The first rank
// to conclude puts its Failure under one key; all ranks that find it there adopt it, so that all tell the
// same story, also those whose own neighbours are only echoes of the fault. The store is reached by a
// connection of our own (clone): a client of TCPStore is locked while it waits. And because the store's host
// may itself be what died, gloo's own timeout, kMargin later, ends the wait if this thread cannot.
//   Where a lane only enqueues, ranks also compare what they enqueued, while they move: Note [Ranks that go
// apart unnoticed].
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "faults/group_health.hpp"
#include "faults/store.hpp"

namespace osdp::runtime {

class Heartbeat {
 public:
  // Added to the timeout of the backend by whoever makes the group (process_groups.py), so that the verdict,
  // which knows more, comes first.
  static constexpr double kMargin_s = 0.5;

  // Of the `world` ranks that share `store`, where nobody else may have written. `timeout_s`: the process
  // group's.
  static void start(std::shared_ptr<Store> store, int64_t rank, int64_t world, double timeout_s,
                    std::shared_ptr<GroupHealth> health);

  // Ends the thread that tells of these lanes, before they end.
  static void end(const GroupHealth& health);
  // Ends all threads. `last_words`: the exception that ends this process; the other ranks are told. Or "".
  static void shutdown(const std::string& last_words);

  // This rank's lanes will run nothing any more (an interrupt from the keyboard): the others are told
  // `cause`.
  static void give_up(const GroupHealth& health, const std::string& cause);
};

}  // namespace osdp::runtime
