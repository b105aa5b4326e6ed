// Trail: the last tasks of a lane that only enqueues, for ranks to compare afterwards.
//
// Note [Ranks that go apart unnoticed]
// An accelerator's messages carry no digest (Note [A digest in every message]): where two ranks run different
// collectives of equal sizes, both end, with wrong numbers. So each rank keeps a digest of all tasks that it
// has enqueued up to each position. Every few tenths of a second the heartbeat puts the newest of them into
// the store and reads that of the rank before it (Beating::compare): each rank looks at one other, and if all
// of these agree, all do. Where two digests of one position differ, both ranks put down the tasks since the
// last position at which they agreed, and the first that differs is the cause.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "faults/task_name.hpp"

namespace osdp::runtime {

// At this position of a lane; what a rank tells of its trail.
struct TrailMark {
  int64_t position = 0;  // 0: nothing has been enqueued
  uint64_t digest = 0;   // of all tasks up to there

  bool operator==(const TrailMark&) const = default;
};

class Trail {
 public:
  static constexpr size_t kKept = 8192;  // tasks: a few steps of the largest models

  // The next one; else what came before is forgotten.
  void add(int64_t position, TaskNamePtr task);
  TrailMark newest() const;
  // nullopt: not enqueued yet, or too long ago.
  std::optional<uint64_t> digest_at(int64_t position) const;
  // Those behind `after`, `to` included, as far as they are kept; `first`: the position of the first.
  std::vector<TaskNamePtr> tasks(int64_t after, int64_t to, int64_t& first) const;

 private:
  struct Step {
    TaskNamePtr task;
    uint64_t digest;  // of all tasks up to this one
  };
  std::deque<Step> steps_;
  int64_t end_ = 0;  // position of the last
};

// Tasks from a position on, as text for the store.
struct TrailPiece {
  int64_t first = 0;
  std::vector<TaskName> tasks;

  std::string encode() const;
  static std::optional<TrailPiece> decode(const std::string& text);
  // Of this position; null: it is not here.
  const TaskName* at(int64_t position) const;
};

std::string encode(const std::vector<TrailMark>& marks);  // one per lane
std::optional<std::vector<TrailMark>> decode_marks(const std::string& text);

}  // namespace osdp::runtime
