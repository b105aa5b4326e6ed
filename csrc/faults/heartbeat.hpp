// Heartbeat: a thread per process group that reports this rank's position to the other ranks and diagnoses
// why this rank waits.
//
// Note [Heartbeats]
// While ranks make progress nothing is reported: a tick every 100 ms compares a few counters of the
// GroupHealth. A rank without progress for a quarter of a second, inside a forward or backward or waiting on
// the lane, writes its RankStatus to the process group's store, and again every half second, so that it is
// known to be alive even if its main thread sleeps for ever. Outside of a pass (between steps, at the end of
// the script) it does so once. A waiting rank reads the other ranks' statuses and ends its wait with an error
// once they explain it (see Note [Who is at fault]), instead of hanging. The first rank to reach a conclusion
// stores its Failure under one key, and all ranks adopt the one that they find there. So all report the same
// cause, also those whose neighbours only fail as a consequence. The store is accessed through a connection
// of its own (clone), since a TCPStore client is locked while it waits. Because the store's host may itself
// have died, gloo's own timeout, kMargin later, ends the wait if this thread cannot.
//
// If a lane only enqueues, ranks also compare what they have enqueued, while they make progress: Note [Ranks
// that go apart unnoticed].
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "faults/group_health.hpp"
#include "faults/store.hpp"

namespace osdp::faults {

class Heartbeat {
 public:
  // Added to the backend's timeout by the code that creates the group (process_groups.py), so that the
  // heartbeat's diagnosis, which is more specific, comes first.
  static constexpr double kMargin_s = 0.5;

  // Starts the thread. `store` is shared by the `world` ranks and must not be used for anything else.
  // `timeout_s`: the process group's timeout.
  static void start(std::shared_ptr<Store> store, int64_t rank, int64_t world, double timeout_s,
                    std::shared_ptr<GroupHealth> health);

  // Ends the thread that reports on these lanes. Must be called before the lanes end.
  static void end(const GroupHealth& health);
  // Ends all threads. `last_words`: the exception that ends this process, which is reported to the other
  // ranks; or "".
  static void shutdown(const std::string& last_words);

  // This rank's lanes will run nothing more (after a keyboard interrupt): reports `cause` to the other ranks.
  static void give_up(const GroupHealth& health, const std::string& cause);
};

}  // namespace osdp::faults
