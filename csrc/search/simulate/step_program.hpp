// The instructions of the computing thread, in the order in which csrc/runtime executes them.
//
// Note [What the runtime does in a step]
// Forward, for each module's call: its unit is requested (gathered unless it is there already, and the next
// one of the recorded order with it), awaited, used, released. SHARD_GRAD_OP units and the last unit of
// forward stay gathered. Backward, from the last operator: the call's unit is requested; when the last
// gradient of a unit is complete, the unit is released and its reduction submitted; when the last gradient of
// a bucket is complete, its all-reduce. Before the backward of a recomputed block's last operator, the
// block's forward runs again; its units are released at once or held. But what it requests again next stays
// gathered: a unit of several of its modules, and the slice with which backward begins. Slices are requested
// one after the other, in backward from the last one, and each waits for the previous reduction before it
// submits its own. On streams every reduction waits for the previous one. At the end of backward all
// reductions are awaited; micro-batches run one after the other; then comes the optimizer's step. The order
// of requests does not depend on any duration.
// In a stage of a pipeline, what is communicated once a step (StepUnit::once, Step::buckets_once) is gathered
// in the first micro-batch, and its gradients are added up until the last one.
//
// Note [What triggers a recomputation]
// The first saved tensor of a block that backward reads triggers its recomputation. If the block ends with an
// operator that has parameters, such as a linear layer whose result is added to the block's input, that is
// this operator's own backward, and its unit has been requested by then. If it ends with one that has none
// but saves something, such as a ReLU, the recomputation comes first: its units are requested, and
// prefetched, in another order. A step does not say which it is. Simulated time assumes the former; the
// largest peak is that of both.
#pragma once

#include <array>

#include "search/simulate/step.hpp"

namespace osdp::search {

enum class StepPhase : int { Forward, Recompute, Backward, Optimizer };
inline constexpr std::array<const char*, 4> kStepPhases{"forward", "recompute", "backward", "optimizer"};

struct Instruction {
  enum class Kind {
    Compute,            // operator `what` (-1: the optimizer) computes for `ps`
    Memory,             // `bytes` are allocated; negative: freed
    Use,                // request unit `what`, at `position` of the order, and wait for it
    Release,            // unit `what` is released
    Reduce,             // submit the reduction of unit `what`
    ReduceBucket,       // submit the all-reduce of bucket `what`
    AwaitReduction,     // wait for the last one submitted
    AwaitCommunication  // wait for everything submitted
  };
  Kind kind;
  StepPhase phase = StepPhase::Forward;
  int what = -1;
  int64_t ps = 0, bytes = 0;
  size_t position = 0;
  bool adds = false;  // Reduce, ReduceBucket: adds to an earlier micro-batch's gradient
};

struct Program {
  std::vector<Instruction> instructions;
  // Units in the order of requests; one row per forward and per backward, each ended by -1.
  std::vector<int> order;
};

// When a block with a bare end is recomputed: Note [What triggers a recomputation].
enum class Recomputation { AfterUse, BeforeUse };

// Throws InvalidProblem if `step` refers to operators, blocks or units that do not exist.
Program make_program(const Step& step, Recomputation when = Recomputation::AfterUse);

}  // namespace osdp::search
