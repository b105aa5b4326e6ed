// The instructions of the thread that computes, in the order in which csrc/runtime carries them out.
//
// Note [What the runtime does in a step]
// Forward, for each module's call: its unit is asked for (gathered unless it is there already, and the next
// one of the recorded order with it), waited for, used, released. SHARD_GRAD_OP units and the one that ends
// forward stay. Backward, from the last operator: the call's unit is asked for; when the last gradient of a
// unit is there, it is released and its reduction submitted; when the last of a bucket is there, its
// all-reduce. Before the last operator of a recomputed block goes backward, the block's forward runs again,
// its units released at once or held. Slices are asked for one after the other, in backward from the last
// one, and wait with the next gradient until the last reduction is over. On streams a reduction waits for the
// one before. At the end of backward all reductions are waited for; micro-batches run one after the other;
// then the optimizer's step. What is asked for in which order does not depend on how long anything takes.
#pragma once

#include <array>

#include "search/simulate/step.hpp"

namespace osdp::search {

enum class StepPhase : int { Forward, Recompute, Backward, Optimizer };
inline constexpr std::array<const char*, 4> kStepPhases{"forward", "recompute", "backward", "optimizer"};

struct Instruction {
  enum class Kind {
    Compute,            // `what`: operator, -1 for the optimizer; for `ps`
    Memory,             // `bytes` more are held; negative: fewer
    Use,                // ask for unit `what`, at `position` of the order, and wait for it
    Release,            // unit `what` is let go
    Reduce,             // unit `what`: its gradient is on its way
    ReduceBucket,       // bucket `what`
    AwaitReduction,     // the last one that was submitted
    AwaitCommunication  // all
  };
  Kind kind;
  StepPhase phase = StepPhase::Forward;
  int what = -1;
  int64_t ps = 0, bytes = 0;
  size_t position = 0;
  bool adds = false;  // Reduce: onto what an earlier micro-batch left
};

struct Program {
  std::vector<Instruction> instructions;
  // Units in the order in which they are asked for; one row per forward and per backward, ended by -1.
  std::vector<int> order;
};

// Throws InvalidProblem where `step` names operators, blocks or units that it does not have.
Program make_program(const Step& step);

}  // namespace osdp::search
