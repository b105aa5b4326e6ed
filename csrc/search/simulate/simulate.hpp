// Plays one training step event by event: a time line of what computes and what communicates, and the memory
// that is held at every moment.
//
// Note [Computation and lanes]
// One thread computes, in the order of the program; a lane communicates, task by task, in the order of
// submission. There is one for everything, a second one where HYBRID_SHARD averages between hosts, and one
// for reductions alone if the plan asks for it. All ranks do the same at the same time, so one is played for
// all.
//   While both run, they hinder each other, and differently: communication mostly waits (for a core, on a
// CPU), so each task has a time alone and a time beside computation; what it takes away from computation
// meanwhile does not grow with that wait, nor with its latency, which is a wait too: it is `stolen` times
// what it transfers alone. A task that transfers for t s and lasts b s beside computation lets b - t stolen s
// of computation get done, and lasts longer where that would be less than nothing. With one
// lane and where nothing is hindered, the step takes no less than the longer of the two by itself, no more
// than both one after the other, and no less when anything takes longer.
//   Tasks of two lanes share a link: each keeps it busy for a part of its time (transfer_ps of alone_ps).
// While the sum of these parts is 1 or less, both run as if alone, one's latency behind the other's transfer;
// above, both take that many times as long.
#pragma once

#include <array>

#include "search/simulate/step_program.hpp"

namespace osdp::search {

struct StepEvent {
  enum class Kind : int { Compute, Gather, Reduce, Average, ReduceBucket };
  static constexpr std::array<const char*, 5> kKinds{"compute", "gather", "reduce", "average", "all_reduce"};
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
  // Parts of it; at each moment something runs. The optimizer computes alone. Two lanes at once count once.
  int64_t only_computing_ps = 0, both_ps = 0, only_communicating_ps = 0, optimizer_ps = 0;
  int64_t peak_bytes = 0;
  std::vector<StepEvent> events;  // by begin
  std::vector<MemoryPoint> memory;
};

enum class Record { Totals, Everything };  // Totals: without events and memory, peak_bytes apart

// `stolen_permille`: seconds of computation that a second of transfer (alone) takes away when it runs
// beside computation, in thousandths. Throws InvalidProblem where `step` does not fit together or a time
// overflows.
PlayedStep play(const Step& step, int64_t stolen_permille = 0, Record record = Record::Everything);

}  // namespace osdp::search
