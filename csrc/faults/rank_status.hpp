// RankStatus: what a rank tells the others of itself through the store, and what they conclude from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "faults/errors.hpp"
#include "faults/process.hpp"
#include "faults/task_name.hpp"

namespace osdp::runtime {

// Of one lane; see CollectiveTracker::Snapshot.
struct LaneStatus {
  int64_t position = 0;
  int64_t asked = 0;
  bool busy = false;
  TaskName task;  // the last one begun
};

struct RankStatus {
  int64_t beat = 0;               // counts what the rank has told; it grows while the process runs
  std::vector<LaneStatus> lanes;  // see GroupHealth::Snapshot
  double still_s = 0;             // for so long nothing of this has changed
  std::string place;              // "" outside of forward and backward
  int64_t raised = 0;
  bool ended = false;  // its process ends after an exception
  std::string text;    // of the last exception; any characters

  std::string encode() const;
  static std::optional<RankStatus> decode(const std::string& text);  // nullopt: not a status
  const LaneStatus& lane(size_t i) const;                            // one that has not begun: all zero
  bool busy() const;
  // Something is enqueued that its device has not begun, for what was enqueued before it.
  bool awaits_device() const;
  // "waits at #12 'blocks.1 all-gather' in backward of 'blocks.1'"
  std::string where() const;
};

// A rank's last status as another rank saw it.
struct Seen {
  std::optional<RankStatus> status;  // none: it has told nothing yet
  double heard_s = 0;                // so long ago `beat` was seen to change, or this rank began to look
};

// What went wrong, in words that every rank can use; the first one that a rank puts into the store counts for
// all.
struct Failure {
  ErrorKind kind = ErrorKind::Rank;
  int64_t rank = -1;  // whose fault; -1: several, or not known
  std::string cause;  // "rank 2's process has ended (...)"

  std::string encode() const;
  static std::optional<Failure> decode(const std::string& text);
};

// Note [Who is at fault]
// A rank that waits at position q of a lane looks at the others. Collectives are in lockstep: none ends
// anywhere before all of its ranks have begun it, so a rank whose position is below q is the one that is
// waited for; or, where only a line or a column of ranks takes part, waits in its own line for that one: who
// waits is not at fault while somebody else is behind who does not. What is certain at once: it runs
// another task at the same position (the order differs), or its process has told that it ends. After
// kRaisedPatience: an exception ended its pass, there and not here, and nothing came since. Only at the
// timeout: it does not come, alive or silent. `mine` is seen[rank]'s newest status.
constexpr double kRaisedPatience_s = 5.0;
std::optional<Failure> certain_failure(int64_t rank, const RankStatus& mine, const std::vector<Seen>& seen,
                                       double timeout_s);
// `silent_s`: a rank that should have told something in that time and did not gives no sign of life.
Failure timed_out(int64_t rank, const RankStatus& mine, const std::vector<Seen>& seen, double timeout_s,
                  double silent_s);
// The connection to `peer` (-1: not known) failed with `what`. `life`: what is seen of its process.
Failure connection_lost(int64_t peer, const std::vector<Seen>& seen, const std::string& what, Life life);
Failure process_ended(int64_t peer, const std::vector<Seen>& seen);
// Two ranks' tasks of one position differ; or some do in between, and the other's are not known.
Failure went_apart(int64_t position, const std::pair<int64_t, const TaskName*>& one,
                   const std::pair<int64_t, const TaskName*>& other);
Failure went_apart(int64_t agreed, int64_t position, int64_t one, int64_t other);

}  // namespace osdp::runtime
