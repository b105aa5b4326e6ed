// A pipeline's schedule, played: when each stage computes each micro-batch, and what it waits for.
//
// Note [Schedules]
// Stage i of p computes the forward and the backward of m micro-batches in a fixed order:
//   GPipe   all forwards, then all backwards
//   1F1B    p - i forwards, then a backward and a forward in turns, then the backwards that are left; with
//           fewer micro-batches than stages, which torch's 1F1B refuses, it is GPipe
// both in the order of micro-batches, so that the last backward is the last micro-batch's. A forward waits
// for the stage before, a backward for the stage after it; what passes between two stages takes its time on
// their link, which has a lane for each direction and sends in order, beside computation. After its last
// backward a stage has its optimizer's step. So a step takes
//   at least (m + p - 1) times a stage's forward and backward where all stages are alike and sends are free,
// and as much with either schedule; 1F1B holds the activations of p - i micro-batches, GPipe of m.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace osdp::search {

enum class PipelineSchedule : int { OneForwardOneBackward = 0, GPipe = 1 };
inline constexpr std::array<const char*, 2> kPipelineSchedules{"1f1b", "gpipe"};

// What a stage takes. The first forward gathers, and the last backward reduces, what is communicated once
// (Note [Stages of a pipeline] in problem/request.hpp).
struct StageTimes {
  int64_t first_forward_ps = 0, forward_ps = 0, backward_ps = 0, last_backward_ps = 0, optimizer_ps = 0;
  int64_t send_activations_ps = 0;  // of a micro-batch to the next stage
  int64_t send_gradients_ps = 0;    // of a micro-batch to the stage before
  // The end of a backward in which the stage waits for its reductions: gradients of activations have left
  // then.
  int64_t backward_tail_ps = 0, last_backward_tail_ps = 0;
};

// How fast stages of one host are that share its cores: element k - 1, in thousandths, while k of them
// compute. One element: each has its own. Note [Shared cores] in shared_cores.hpp.
using SharedCores = std::vector<int64_t>;

struct PassEvent {
  int stage = 0, micro_batch = 0;
  bool forward = true;
  int64_t begin_ps = 0, end_ps = 0;
};

struct PlayedSchedule {
  int64_t step_ps = 0;
  std::vector<int64_t> busy_ps;   // by stage: in its passes and its optimizer's step
  std::vector<PassEvent> events;  // in the order of their begins
};

// Micro-batches whose activations stage `stage` holds at most.
int64_t most_in_flight(PipelineSchedule schedule, int64_t stages, int64_t stage, int64_t micro_batches);

// `record`: with events. Throws InvalidProblem for no stages, no micro-batches, negative times, a step above
// 2^61 ps, or a speed that is none.
PlayedSchedule play_schedule(PipelineSchedule schedule, const std::vector<StageTimes>& stages,
                             int64_t micro_batches, bool record, const SharedCores& cores = {1000});

}  // namespace osdp::search
