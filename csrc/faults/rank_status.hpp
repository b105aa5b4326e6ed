// RankStatus: what a rank reports about itself to the others through the store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "faults/task_name.hpp"

namespace osdp::faults {

// Of one lane; see CollectiveTracker::Snapshot.
struct LaneStatus {
  int64_t position = 0;
  int64_t asked = 0;
  bool busy = false;
  TaskName task;  // the last one begun
};

struct RankStatus {
  int64_t beat = 0;               // number of reports; grows while the process runs
  std::vector<LaneStatus> lanes;  // see GroupHealth::Snapshot
  double still_s = 0;             // seconds without any change of this
  std::string place;              // "" outside of forward and backward
  int64_t raised = 0;
  bool ended = false;  // its process ends after an exception
  std::string text;    // of the last exception; any characters

  std::string encode() const;
  static std::optional<RankStatus> decode(const std::string& text);  // nullopt: not a status
  const LaneStatus& lane(size_t i) const;                            // all zero if it has not begun
  bool busy() const;
  // Whether something is enqueued that its device has not begun, because of earlier work.
  bool awaits_device() const;
  // "waits at #12 'blocks.1 all-gather' in backward of 'blocks.1'"
  std::string where() const;
};

}  // namespace osdp::faults
