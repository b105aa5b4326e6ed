// Plays one training step event by event: a time line of what computes and what communicates, and the memory
// that is held at every moment.
//
// Note [Two resources]
// One thread computes, in the order of the program; one lane communicates, task by task, in the order of
// submission. Each runs at full speed while the other waits, and slower by a measured factor while both run:
// they share cores on a CPU, memory and multiprocessors on a GPU. All ranks do the same at the same time, so
// one is played for all. With factors of 1, the step takes no less than the longer of the two by itself, no
// more than both one after the other, and no less when anything takes longer.
#pragma once

#include "search/step_program.hpp"

namespace osdp::search {

// How much longer something takes while the other resource works: at least 1, in thousandths.
struct Contention {
  int64_t computing_permille = 1000, communicating_permille = 1000;
};

struct StepEvent {
  enum class Kind : int { Compute, Gather, Reduce, ReduceBucket };
  Kind kind = Kind::Compute;
  StepPhase phase = StepPhase::Forward;  // in which it was submitted
  int what = -1;                         // operator, unit or bucket; -1: the optimizer
  int64_t begin_ps = 0, end_ps = 0;
};

// From this moment on.
struct MemoryPoint {
  int64_t time_ps = 0, bytes = 0;
};

struct PlayedStep {
  int64_t step_ps = 0;
  // Parts of it; at each moment something runs. The optimizer computes alone.
  int64_t only_computing_ps = 0, both_ps = 0, only_communicating_ps = 0, optimizer_ps = 0;
  int64_t peak_bytes = 0;
  std::vector<StepEvent> events;  // by begin
  std::vector<MemoryPoint> memory;
};

// Throws InvalidProblem where `step` does not fit together, a factor is below 1 or a time overflows.
PlayedStep play(const Step& step, const Contention& contention = {});

}  // namespace osdp::search
