// What is planned: the model's operators and blocks, the machine, and the wish.
#pragma once

#include "search/problem/cost.hpp"

namespace osdp::search {

struct Block {
  std::string name;
  int64_t input_bytes_per_sample = 0;  // what stays of it when it is recomputed
};

// Operators in execution order.
struct Model {
  std::vector<Operator> operators;
  std::vector<Block> blocks;
  int64_t input_bytes_per_sample = 0;
  int64_t buffer_bytes = 0;  // of its modules: on every rank, in every phase
};

// A batch size per rank and how many such micro-batches make one step.
struct Batch {
  int64_t size = 1, accumulation = 1;
  int64_t samples() const { return size * accumulation; }
};

// Note [Reserve]
// A step gathers a unit, uses it, makes its gradient and reduces it. The gradient that is being made counts
// in its operator's own phase (Candidate::own_bytes). All else that is large and exists only for a while is
// the lane's: parameters in use and those that are gathered ahead, which have the memory of 1 + `prefetch`
// units of the largest size; and gradients that leave. A lane that is a thread begins a gather when the
// reduction submitted before it has ended, so those are of units that were in this sum, and `buffers` is
// 1 + prefetch. On streams a gather has its memory when it is submitted, and the gradient before is kept
// until computation has waited for its reduction (csrc/comm/lane.hpp, Note [Memory that two streams use]):
// one more. In every phase.
struct Request {
  Device device;
  Space space;
  int64_t limit_bytes = 0;
  std::vector<Batch> batches;         // empty: every size from 1 to the largest that fits, one micro-batch
  std::vector<Recompute> recompute;   // what may be done with a block; never empty
  int64_t least_transient_bytes = 0;  // units are at least this large
  int64_t buffers = 2;                // full tensors beside the one being made: Note [Reserve]
  bool find_smallest = true;          // where nothing fits: search for the least limit that works
  bool depth_first = false;           // the paper's search in place of the exact one (Cost::Paper only)
  bool smallest_first = false;        // of it: the smallest options first (solve_dfs)

  bool paper() const { return space.cost == Cost::Paper; }
  int64_t reserve_bytes(int64_t transient) const {
    if (paper() || device.ranks == 1) return 0;
    return buffers * (transient > least_transient_bytes ? transient : least_transient_bytes);
  }
};

inline constexpr int64_t kMostBatch = 65536;  // where activations cost nothing, no larger batch is tried

}  // namespace osdp::search
