// Diagnosis: what ranks conclude from each other's statuses: who is at fault, and why.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "faults/errors.hpp"
#include "faults/process.hpp"
#include "faults/rank_status.hpp"
#include "faults/task_name.hpp"

namespace osdp::runtime {

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
