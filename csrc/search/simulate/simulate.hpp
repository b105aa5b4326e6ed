// Discrete-event simulation of one training step: timelines of computation and communication, and the memory
// held at every time.
//
// Note [Computation and lanes]
// One thread computes, in program order; a lane communicates, task by task, in the order of submission. There
// is one lane for all collectives, another for HYBRID_SHARD's averages between hosts, and one for reductions
// alone if the plan asks for it. All ranks do the same at the same time, so one of them is simulated.
//
// Computation and communication slow each other down, in different ways. Communication mostly waits (for a
// core, on a CPU), so each task has a time alone and a time beside computation. The time that it takes from
// computation does not grow with that wait, nor with its latency, which is a wait too: it is `stolen` times
// the task's transfer time alone. During a task that transfers for t s and takes b s beside computation,
// b - t stolen s of computation are done; the task takes longer if that would be negative. With one lane and
// no interference, the step takes at least the longer of the two alone, at most their sum, and is monotone in
// every duration.
//
// Tasks of different lanes share a link: each keeps it busy for a fraction of its time (transfer_ps /
// alone_ps). If these fractions sum to at most 1, all run as if alone, since one's latency overlaps the
// other's transfer; otherwise each takes longer by that factor.
#pragma once

#include <array>

#include "search/simulate/step_program.hpp"

namespace osdp::search {

struct StepEvent {
  enum class Kind : int { Compute, Gather, Reduce, Average, ReduceBucket };
  static constexpr std::array<const char*, 5> kKinds{"compute", "gather", "reduce", "average", "all_reduce"};
  Kind kind = Kind::Compute;
  StepPhase phase = StepPhase::Forward;  // phase in which it was submitted
  int what = -1;                         // operator, unit or bucket; -1: the optimizer
  int64_t begin_ps = 0, end_ps = 0;
};

// Memory held from this time on.
struct MemoryPoint {
  int64_t time_ps = 0, bytes = 0;
};

// A time and its parts, but for the optimizer, which computes alone; something runs at every time. Concurrent
// lanes count once.
struct StepParts {
  int64_t step_ps = 0, only_computing_ps = 0, both_ps = 0, only_communicating_ps = 0;
};

struct PlayedStep : StepParts {
  int64_t optimizer_ps = 0;
  std::vector<StepParts> ends;  // up to the end of each micro-batch
  int64_t peak_bytes = 0;
  std::vector<StepEvent> events;  // sorted by begin
  // How long each micro-batch's forward and backward took, one after the other.
  std::vector<int64_t> passes_ps;
  // Of each backward, the end in which it waits for communication alone: nothing is computed in it.
  std::vector<int64_t> tails_ps;
  std::vector<MemoryPoint> memory;
};

enum class Record { Totals, Everything };  // Totals: without events and memory, except peak_bytes

// `stolen_permille`: computation time lost per second of transfer (alone) that overlaps computation, in
// thousandths. Throws InvalidProblem if `step` is inconsistent or a time overflows.
PlayedStep play(const Step& step, int64_t stolen_permille = 0, Record record = Record::Everything);

}  // namespace osdp::search
