// Lane: an ordered sequence of communications of a process group.
//
// Note [One lane]: every collective runs here (but for Note [Two lanes] and Note [A lane for reductions]),
// one after the other, in the order of submission. All ranks submit in the same order, so collectives never
// cross. And because a gather begins (and takes its memory) only when the reduction submitted before it has
// ended, a step holds at most three full-size tensors: the parameters in use, those arriving or the gradients
// leaving, and the gradients being made. On the CPU a lane is a thread, which waits for gloo where the caller
// computes on. On accelerators it is a stream of its own: tasks run on the caller's thread and only enqueue;
// the stream waits for the work that the caller enqueued before.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/StreamGuard.h>

#include <functional>
#include <memory>
#include <source_location>
#include <string>

#include "comm/early_send.hpp"
#include "comm/work.hpp"
#include "faults/group_health.hpp"
#include "faults/task_name.hpp"

namespace osdp::runtime {

// Note [A lane for reductions]
// On one lane a gather waits for the reduction submitted before it, although one is often the other's
// latency: a ring's link is free while its messages are under way. If the plan asks for it
// (separate_reductions), what is reduced has a lane and a communicator beside, on accelerators. A step needs
// no more memory for it: there the computation waits for one reduction before it submits the next anyway
// (below). On the CPU nothing is gained, since each message waits for a core.
//   Communicators that are used at once must be used in one order on all ranks, or their kernels may wait for
// each other (NCCL's documentation, "Using multiple NCCL communicators concurrently"): all lanes are
// submitted to by one thread, in the order of the model.
//
// Note [Memory that two streams use]
// A device's allocator gives freed memory out again on the stream that it was allocated on, at once, whatever
// other streams still do with it. So memory that a task of a stream's lane reads or writes, and that somebody
// may free before he has waited for the task, is kept by its Work (`Lane::keep`) until the stream that
// submitted it has waited for it. Gradients leave that way: so that they do not pile up, whoever submits one
// first waits for the one before (`keeps()`): at most one more exists than on a lane that is a thread, which
// lets go of memory only when it is done with it.
//   What a task makes also belongs to one stream's pool, and no pool can help another. So all that is large,
// and all that outlives the task, is allocated from the submitter's (`Lane::empty`, `SubmittersMemory`):
// there it is freed and given out again, in order with what that stream computes. The task's stream may use
// it at once: it has waited for all that the submitter enqueued before the task, and while a task runs, on
// the submitter's thread, nothing else is enqueued there. Only temporary copies of small tensors are left in
// the lane's own pool.
//   A task may submit another one to the lane beside (Note [Two lanes]). It begins after what the first has
// enqueued, but its memory is that of the stream that trains too, which waits for it before it is free.
//   `where`, in what follows: the call, by which a test leaves it out; see left_out.hpp.

class BackendMemory;

class Lane {
 public:
  using Task = std::function<void()>;

  virtual ~Lane() = default;

  // `name`: alike on all ranks, or their messages do not match. Its label names the unit and the phase in the
  // profiler's timeline, and in the error if the task fails.
  // After a task has failed, those after it fail at once with the same error: ranks no longer agree on where
  // they are. `early` is what the task's first schedule sends first, if that is known already; it is not kept
  // once the task runs.
  virtual Work submit(TaskNamePtr name, Task task, EarlySend early = {}) = 0;

  // Whether tasks end before their memory is let go of; see Note [Memory that two streams use].
  virtual bool keeps() const { return false; }
  // Within a task that reads the tensor, which was allocated outside of it.
  static void keep(at::Tensor tensor, std::source_location where = std::source_location::current());
  // Within a task: memory of the submitter's, kept. Flat where it is the backend's `memory`.
  static at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options,
                          const BackendMemory* memory = nullptr);
  // Within a task, where nothing is computed: what is allocated meanwhile is memory of the submitter's.
  class SubmittersMemory {
   public:
    SubmittersMemory();

   private:
    c10::OptionalStreamGuard there_;
  };

  // The host waits until what was submitted has been carried out on the device too; where the lane is a
  // thread, Work::wait does that.
  virtual void synchronize() {}

  // What the lanes of the process group share.
  GroupHealth& health() const { return *health_; }

  // One lane per process group (by name) and device, shared by every model on it.
  static std::shared_ptr<Lane> of(const std::string& group, c10::Device device);
  // A lane beside it: see Note [Two lanes], Note [A lane for reductions]. They end together, with one error.
  static constexpr const char* kBetweenLines = "between lines";
  static constexpr const char* kReductions = "reductions";
  static std::shared_ptr<Lane> beside(const std::string& group, const char* what, c10::Device device);
  // One of the caller's own, for what only some ranks of a group do: it moves no position of the group's.
  static std::shared_ptr<Lane> apart(c10::Device device);

  // Ends all lanes' threads; to be called before the interpreter goes down.
  static void shutdown();

 protected:
  explicit Lane(std::shared_ptr<GroupHealth> health)
      : health_(std::move(health)), tracker_(health_->add_lane()) {}

  const std::shared_ptr<GroupHealth> health_;
  CollectiveTracker& tracker_;  // where this rank is in the lane's sequence

  friend void start_heartbeat(const std::string& group, c10::Device device, double timeout_s);
};

// Other ranks that die, hang or go another way are found out from here on; see heartbeat.hpp. Once per group
// and device.
void start_heartbeat(const std::string& group, c10::Device device, double timeout_s);

}  // namespace osdp::runtime
