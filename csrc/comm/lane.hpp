// Lane: executes the communication of a process group in order.
//
// Note [One lane]: every collective runs here (but for Note [Two lanes] and Note [A lane for reductions]),
// one after the other, in the order of submission. All ranks submit in the same order, so collectives never
// cross. And because a gather begins (and allocates its memory) only when the reduction submitted before it
// has ended, a step holds at most three full-size tensors: the parameters in use, the parameters being
// gathered or the gradients being reduced, and the gradients being computed. On the CPU a lane is a thread,
// which blocks in communication while the caller continues to compute. On accelerators it is a separate
// stream: tasks run on the caller's thread and only enqueue work, and the stream waits for the work that the
// caller enqueued before.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/early_send.hpp"
#include "comm/left_out.hpp"
#include "comm/work.hpp"
#include "faults/group_health.hpp"
#include "faults/task_name.hpp"

namespace osdp::comm {

// Note [A lane for reductions]
// On one lane a gather waits for the reduction submitted before it, although the two could hide each other's
// latency: a ring's link is idle while a message is in flight. If the plan asks for it (separate_reductions),
// reductions have a lane and a communicator of their own, on accelerators. A step needs no more memory for
// it: there the computation waits for one reduction before it submits the next anyway (below). On the CPU
// nothing is gained, since each message waits for a core.
//
// Communicators that are used concurrently must be used in the same order on all ranks, or their kernels may
// deadlock (NCCL's documentation, "Using multiple NCCL communicators concurrently"): one thread submits to
// all lanes, in the order of the model.
//
// Note [Memory that two streams use]
// A device's caching allocator reuses freed memory on the stream that it was allocated on at once, even if
// other streams still use it. So memory that a task of a stream lane reads or writes, and that may be freed
// before the task has been awaited, is kept alive by its Work (`Lane::keep`) until the submitting stream has
// waited for it. This applies to gradients being reduced. So that they do not pile up, the submitter of a
// gradient first waits for the previous one (`keeps()`): at most one more exists than on a thread lane, which
// releases memory when the task has finished.
//
// Memory that a task allocates also belongs to one stream's pool, and pools cannot lend memory to each other.
// So everything that is large or outlives the task is allocated from the submitter's pool (`Lane::empty`,
// `SubmittersMemory`), where it is freed and reused in order with what that stream computes. The task's
// stream may use it at once: it has waited for everything that the submitter enqueued before the task, and
// nothing else is enqueued there while the task runs on the submitter's thread. Only temporary copies of
// small tensors come from the lane's own pool.
//
// A task may submit another one to a second lane (Note [Two lanes]). That task begins after what the first
// has enqueued, but its memory also belongs to the computing stream, which waits for it before the memory is
// freed.
//
// `where`, below, is the call site, by which a test can leave the call out; see left_out.hpp.

class BackendMemory;

class Lane {
 public:
  using Task = std::function<void()>;

  virtual ~Lane() = default;

  // `name` must be equal on all ranks, or their messages do not match. Its label names the unit and the phase
  // in the profiler's timeline, and in the error if the task fails. After a task has failed, later tasks fail
  // at once with the same error, because ranks may no longer be at the same position. `early`: the first
  // messages of the task's first schedule, if they are known already; released when the task begins to run.
  virtual Work submit(faults::TaskNamePtr name, Task task, EarlySend early = {}) = 0;

  // Whether memory of a task is kept after the task has returned; see Note [Memory that two streams use].
  virtual bool keeps() const { return false; }
  // Within a task: keeps alive a tensor that the task uses and that was allocated outside of it.
  static void keep(at::Tensor tensor, CallSite where = CallSite::current());
  // Within a task: a tensor from the submitter's pool, kept alive. With the backend's `memory` it is flat.
  static at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options,
                          const BackendMemory* memory = nullptr);
  // Within a task: while this exists, allocations come from the submitter's pool. Nothing may be computed
  // meanwhile. Dispatch modes do not see them: torch's stream sanitizer takes every `empty` for a kernel of
  // the current stream, which the task's stream would have to wait for.
  class SubmittersMemory {
   public:
    SubmittersMemory();

   private:
    c10::OptionalStreamGuard there_;
    std::optional<c10::impl::ExcludeDispatchKeyGuard> unseen_;
  };

  // Blocks the host until submitted tasks have finished on the device. No-op for a thread lane, where
  // Work::wait blocks already.
  virtual void synchronize() {}

  // Ends the lane's thread, whoever still holds the lane: waits for its tasks, and interrupts those that take
  // too long. A task that is submitted later fails at once.
  virtual void end() {}

  // Shared by all lanes of the process group.
  faults::GroupHealth& health() const { return *health_; }

  // One lane per process group (by name) and device, shared by every model on it.
  static std::shared_ptr<Lane> of(const std::string& group, c10::Device device);
  // A further lane of the same group: see Note [Two lanes], Note [A lane for reductions]. If one of them
  // fails, all end with the same error.
  static constexpr const char* kBetweenLines = "between lines";
  static constexpr const char* kReductions = "reductions";
  static std::shared_ptr<Lane> beside(const std::string& group, const char* what, c10::Device device);
  // A private lane, for what only some ranks of a group do: its tasks do not count in the group's sequence.
  static std::shared_ptr<Lane> apart(c10::Device device);

  // Ends every lane. Must be called before the interpreter is finalized: a task that lets go of a tensor
  // which Python holds needs the interpreter's lock, and a thread that asks for it later ends the process.
  static void shutdown();

 protected:
  explicit Lane(std::shared_ptr<faults::GroupHealth> health)
      : health_(std::move(health)), tracker_(health_->add_lane()) {}

  const std::shared_ptr<faults::GroupHealth> health_;
  faults::CollectiveTracker& tracker_;  // this rank's position in the lane's sequence
};

// From now on detects other ranks that die, hang or diverge; see heartbeat.hpp. Once per group and device.
void start_heartbeat(const std::string& group, c10::Device device, double timeout_s);

}  // namespace osdp::comm
