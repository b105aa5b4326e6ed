// Plays one training step event by event: a time line of what computes and what communicates, and the memory
// that is held at every moment.
//
// Note [Two resources]
// One thread computes, in the order of the program; one lane communicates, task by task, in the order of
// submission. All ranks do the same at the same time, so one is played for all. While both run, they hinder
// each other, and differently: communication mostly waits (for a core, on a CPU), so each task has a time
// alone and a time beside computation; what it takes away from computation meanwhile does not grow with that
// wait: it is a share of its time alone (`stolen`). A task of a s alone and b s beside, wholly beside
// computation, lasts b, in which b - a stolen s of computation get done. Where nothing is hindered, the step
// takes no less than the longer of the two resources by itself, no more than both one after the other, and no
// less when anything takes longer.
#pragma once

#include "search/step_program.hpp"

namespace osdp::search {

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

// `stolen_permille`: seconds of computation that a second of communication (alone) takes away when it runs
// beside computation, in thousandths. Throws InvalidProblem where `step` does not fit together or a time
// overflows.
PlayedStep play(const Step& step, int64_t stolen_permille = 0);

}  // namespace osdp::search
