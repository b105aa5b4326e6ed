// Trail: the last tasks of a lane that only enqueues, which ranks compare afterwards.
//
// Note [Ranks that go apart unnoticed]
// An accelerator's messages carry no digest (Note [A digest in every message]): if two ranks run different
// collectives of equal sizes, both complete with wrong results. So each rank keeps, for each position, a
// digest of all tasks that it has enqueued so far. Every few tenths of a second the heartbeat writes the
// newest digest to the store and reads that of the rank before it (Beating::compare): each rank compares with
// one other, and if all pairs agree, all ranks do. If two digests of one position differ, both ranks write
// the tasks since the last position at which they agreed to the store, and the first task that differs is the
// cause.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "faults/task_name.hpp"

namespace osdp::faults {

// What a rank reports of its trail: the digest at a position of a lane.
struct TrailMark {
  int64_t position = 0;  // 0: nothing has been enqueued
  uint64_t digest = 0;   // of all tasks up to there

  bool operator==(const TrailMark&) const = default;
};

class Trail {
 public:
  static constexpr size_t kKept = 8192;  // tasks: a few steps of the largest models

  // Appends a task. If `position` is not the next one, the trail is cleared first.
  void add(int64_t position, TaskNamePtr task);
  TrailMark newest() const;
  // nullopt: not enqueued yet, or no longer kept.
  std::optional<uint64_t> digest_at(int64_t position) const;
  // The kept tasks at positions after `after`, up to and including `to`; `first`: the position of the first
  // one.
  std::vector<TaskNamePtr> tasks(int64_t after, int64_t to, int64_t& first) const;

 private:
  struct Step {
    TaskNamePtr task;
    uint64_t digest;  // of all tasks up to this one
  };
  std::deque<Step> steps_;
  int64_t end_ = 0;  // position of the last task
};

// Consecutive tasks from a position on; encoded as text for the store.
struct TrailPiece {
  int64_t first = 0;
  std::vector<TaskName> tasks;

  std::string encode() const;
  static std::optional<TrailPiece> decode(const std::string& text);
  // The task at this position; null: not contained.
  const TaskName* at(int64_t position) const;
};

std::string encode(const std::vector<TrailMark>& marks);  // one per lane
std::optional<std::vector<TrailMark>> decode_marks(const std::string& text);

}  // namespace osdp::faults
