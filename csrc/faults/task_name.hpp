// TaskName: what a task of a lane is. It must be alike on all ranks that take part.
//
// Note [A digest in every message]
// All ranks must run the same collectives on the same tensors in the same order. A rank that takes another
// branch, calls another model or leaves a parameter out would leave the others waiting, or have its bytes
// taken for those of another tensor. So the messages of a collective carry 64 bits in their header: a digest
// of the task's position (#1, #2, ... since the lane was made), of its model, unit and phase, and of which
// tensors of the unit are in it. A message with another digest is never taken. Ranks that differ then wait,
// both; the heartbeat of a rank that waits for half a second compares positions and digests, and both ranks
// end with an OrderError that says where each is and what differs. Over gloo the digest is folded into the
// message's tag, which has 31 bits. NCCL's messages carry nothing of ours: see Note [Ranks that go apart
// unnoticed].
//   It costs a step next to nothing: names are made when the model is sharded, and what is left is to mix in
// the tensors of a reduction, and the position.
//
// Note [Micro-batches between steps]
// Where one rank steps after two backwards and another after three, their collectives still match: a gradient
// of the one's new parameters is averaged with one of the other's old ones, and rows of both are gathered
// together. So the digest of what a forward or backward exchanges says whether it accumulates: whether a
// gradient has been averaged since this rank's parameters changed (which their version tells) or every
// gradient was dropped. All of this ranks do alike, whatever their own data. It follows from what was
// averaged, so passes that exchange nothing may differ in number (NO_SHARD under no_sync).
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "faults/digest.hpp"

namespace osdp::runtime {

struct TaskName {
  std::string label;    // unit and phase: "blocks.3 all-gather"
  int64_t model = 0;    // the model's number, see Runtime; 0: it belongs to none
  std::string details;  // what else ranks must agree on, in words: "with gradients of 'w' only"; mostly ""
  uint64_t digest = 0;  // of all this
  bool accumulates = false;  // see Note [Micro-batches between steps]

  // "'blocks.3 all-gather' of model 2 with gradients of 'w' only"
  std::string text() const;
};
using TaskNamePtr = std::shared_ptr<const TaskName>;

// Lines of text, for other ranks.
void write(std::ostream& out, const TaskName& task);
TaskName read_task(std::istream& in);

// `digest`: of what ranks must agree on beyond what is said in words (sizes).
TaskNamePtr task_name(std::string label, int64_t model = 0, std::string details = "", uint64_t digest = 0);

// One phase of a unit or bucket: the names of its tasks, by which of its tensors take part.
class TaskNames {
 public:
  enum class Part : uint8_t { None, Gradient, WithKept };  // WithKept: and what no_sync kept of it

  TaskNames() = default;
  TaskNames(const std::string& label, int64_t model, std::vector<std::string> tensors);

  const TaskNamePtr& all(bool accumulates) const { return all_[accumulates]; }
  // parts[i]: of the i-th tensor.
  const TaskNamePtr& of(const std::vector<Part>& parts, bool accumulates);

 private:
  TaskNamePtr of_some(const std::vector<Part>& parts, uint64_t digest, bool accumulates) const;

  std::vector<std::string> tensors_;
  std::vector<uint64_t> digests_;   // of their names
  std::array<uint64_t, 2> base_{};  // both by whether it accumulates
  std::array<TaskNamePtr, 2> all_;
  TaskNamePtr some_;  // the last of those that are not all
};

}  // namespace osdp::runtime
