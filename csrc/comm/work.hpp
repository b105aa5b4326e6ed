// Work: the completion of one task of a lane (lane.hpp).
#pragma once

#include <memory>
#include <utility>

#include "comm/left_out.hpp"

namespace osdp::comm {

// A handle to the completion of one task. Copyable; an empty one is complete.
class Work {
 public:
  // After this the task's results can be read: on the CPU the caller blocks (the GIL must not be held), on an
  // accelerator the current stream waits. Rethrows what the task threw. See Note [Ctrl-C while waiting].
  void wait(CallSite where = CallSite::current()) const;
  // Waits without rethrowing, without checking for signals and without a profiler range. For a lane's thread,
  // or for cleanup.
  void settle(CallSite where = CallSite::current()) const;
  // Whether wait() would return at once; also true if the task failed.
  bool done() const;
  // How long the task ran, in seconds, including waits for other ranks; 0 on accelerators, and before it is
  // done.
  double seconds() const;

  struct State;
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// Note [Ctrl-C while waiting]
// Python handles signals between bytecodes, so not while its main thread waits for the lane. A wait therefore
// checks for signals every 100 ms with this function, which throws Python's exception. The wait then
// continues until the lane has released the task's memory. That happens at once, because the lane's
// collectives are interrupted; they cannot be resumed, since the other ranks cannot know where this one
// stopped.
void set_signal_check(void (*check)());

}  // namespace osdp::comm
