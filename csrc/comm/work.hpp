// Work: the end of one task of a lane (lane.hpp).
#pragma once

#include <memory>
#include <source_location>
#include <utility>

namespace osdp::runtime {

// The end of one task. Copyable; empty ones wait for nothing.
class Work {
 public:
  // After this the task's results can be read: on the CPU the caller blocks (the GIL must not be held), on an
  // accelerator the current stream waits. Rethrows what the task threw. See Note [Ctrl-C while waiting].
  void wait(std::source_location where = std::source_location::current()) const;
  // The same without errors: no signals, nothing told to the profiler. For a lane's thread, or to clear up.
  void settle(std::source_location where = std::source_location::current()) const;
  // Whether that moment has come; also when the task failed.
  bool done() const;
  // How long the task ran, waiting for other ranks included; 0 on accelerators, and before it is done.
  double seconds() const;

  struct State;
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// Note [Ctrl-C while waiting]
// Python serves signals between bytecodes, so not while its main thread waits for the lane. A wait therefore
// looks for them every 100 ms, by this function, which throws Python's exception. The wait still goes on
// until the lane has let go of the task's memory, which it does at once: its collectives are interrupted, for
// good, since the other ranks cannot know where this one stopped.
void set_signal_check(void (*check)());

}  // namespace osdp::runtime
