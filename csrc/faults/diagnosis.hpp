// Diagnosis: concludes from the statuses of ranks which rank is at fault, and why.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "faults/errors.hpp"
#include "faults/process.hpp"
#include "faults/rank_names.hpp"
#include "faults/rank_status.hpp"
#include "faults/task_name.hpp"

namespace osdp::faults {

// A rank's last status as another rank saw it.
struct Seen {
  std::optional<RankStatus> status;  // none: not reported yet
  double heard_s = 0;  // seconds since `beat` was seen to change, or since this rank began to read
};

// A failure, described so that every rank can report it. All ranks adopt the first one written to the store.
struct Failure {
  static constexpr const char* kKey = "failure";  // in the store

  ErrorKind kind = ErrorKind::Rank;
  int64_t rank = -1;  // the rank at fault; -1: several or unknown
  std::string cause;  // "rank 2's process has ended (...)"

  std::string encode() const;
  static std::optional<Failure> decode(const std::string& text);
};

// Note [Who is at fault]
// A rank that waits at position q of a lane examines the others. Collectives are in lockstep: none ends on
// any rank before all of its ranks have begun it. So a rank whose position is below q is the one being waited
// for; or, if only a line or a column of ranks takes part, that rank waits in its own line for the one at
// fault. A waiting rank is not at fault while another rank is behind and not waiting. Certain at once: a rank
// runs a different task at the same position (the order differs), or its process has reported that it ends.
// Certain after kRaisedPatience: an exception ended a pass on that rank but not on this one, and the rank has
// submitted nothing since. Only at the timeout: the rank does not arrive, whether alive or silent. `mine` is
// seen[rank]'s newest status. All texts call ranks by `name`.
constexpr double kRaisedPatience_s = 5.0;
std::optional<Failure> certain_failure(int64_t rank, const RankStatus& mine, const std::vector<Seen>& seen,
                                       double timeout_s, const RankNames& name);
// `silent_s`: a rank that should have reported within that time and has not is taken to show no sign of life.
Failure timed_out(int64_t rank, const RankStatus& mine, const std::vector<Seen>& seen, double timeout_s,
                  double silent_s, const RankNames& name);
// The connection to `peer` (-1: not known) failed with `what`. `life`: the observed state of its process.
Failure connection_lost(int64_t peer, const std::vector<Seen>& seen, const std::string& what, Life life,
                        const RankNames& name);
Failure process_ended(int64_t peer, const std::vector<Seen>& seen, const RankNames& name);
// The tasks of two ranks differ: at `position`; or somewhere after `agreed` up to `position`, if the other
// rank's tasks are not known.
Failure went_apart(int64_t position, const std::pair<int64_t, const TaskName*>& one,
                   const std::pair<int64_t, const TaskName*>& other, const RankNames& name);
Failure went_apart(int64_t agreed, int64_t position, int64_t one, int64_t other, const RankNames& name);

}  // namespace osdp::faults
