// RankStatus: what a rank tells the others of itself through the store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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

}  // namespace osdp::runtime
