// TaskName: identifies a task of a lane. It must be equal on all participating ranks.
//
// Note [A digest in every message]
// All ranks must run the same collectives on the same tensors in the same order. If a rank took another
// branch, called another model or left out a parameter, the others would hang, or its bytes would be mistaken
// for those of another tensor. So the messages of a collective carry 64 bits in their header: a digest of the
// task's position (#1, #2, ... since the lane was created), its model, unit and phase, and the tensors of the
// unit that take part. A message with another digest is never taken. Ranks that differ then both wait; the
// heartbeat of a rank that has waited for half a second compares positions and digests, and both ranks end
// with an OrderError that says where each is and what differs. Over gloo the digest is folded into the
// message's tag, which has 31 bits. NCCL's messages carry nothing of ours: see Note [Ranks that go apart
// unnoticed].
//
// The cost per step is negligible: names are created when the model is sharded, and only the tensors of a
// reduction and the position are mixed in later.
//
// Note [Micro-batches between steps]
// If one rank steps after two backwards and another after three, their collectives still match: a gradient of
// the first rank's new parameters would be averaged with one of the other's old ones, and rows of both
// gathered together. So the digest of every collective in a forward or backward includes whether it
// accumulates: whether a gradient has been averaged since this rank's parameters changed (detected by their
// version counters) or all gradients were dropped. Correct ranks agree on this, whatever their data. It
// depends on what was averaged, so passes that exchange nothing (NO_SHARD under no_sync) may differ in
// number.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "faults/digest.hpp"

namespace osdp::faults {

struct TaskName {
  std::string label;         // unit and phase: "blocks.3 all-gather"
  int64_t model = 0;         // the model's number, see Runtime; 0: it belongs to none
  std::string details;       // what else ranks must agree on: "with gradients of 'w' only"; mostly ""
  uint64_t digest = 0;       // of all this
  bool accumulates = false;  // see Note [Micro-batches between steps]

  // "'blocks.3 all-gather' of model 2 with gradients of 'w' only"
  std::string text() const;
};
using TaskNamePtr = std::shared_ptr<const TaskName>;

// Serialization as lines of text.
void write(std::ostream& out, const TaskName& task);
TaskName read_task(std::istream& in);

// `digest`: of further things that ranks must agree on but that are not in the text (sizes).
TaskNamePtr task_name(std::string label, int64_t model = 0, std::string details = "", uint64_t digest = 0);

// The task names of one phase of a unit or bucket: one for each set of its tensors that takes part.
class TaskNames {
 public:
  enum class Part : uint8_t { None, Gradient, WithKept };  // WithKept: with the gradient kept under no_sync

  TaskNames() = default;
  TaskNames(const std::string& label, int64_t model, std::vector<std::string> tensors);

  const TaskNamePtr& all(bool accumulates) const { return all_[accumulates]; }
  // parts[i]: how the i-th tensor takes part.
  const TaskNamePtr& of(const std::vector<Part>& parts, bool accumulates);

 private:
  TaskNamePtr of_some(const std::vector<Part>& parts, uint64_t digest, bool accumulates) const;

  std::vector<std::string> tensors_;
  std::vector<uint64_t> digests_;   // of the tensors' names
  std::array<uint64_t, 2> base_{};  // this and all_: indexed by `accumulates`
  std::array<TaskNamePtr, 2> all_;
  TaskNamePtr some_;  // the last name in which not all take part
};

}  // namespace osdp::faults
