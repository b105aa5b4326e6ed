// What a plan is searched for: the machine, what may be chosen, memory and batches.
#pragma once

#include <cstdint>
#include <vector>

#include "modes.hpp"

namespace osdp::search {

enum class Cost { Paper, Osdp };
using osdp::Mode;
using osdp::Recompute;
using osdp::Split;

// A ring collective on S bytes over N ranks takes steps * (alpha + S/N beta), steps = N-1 or 2(N-1)
// (all_reduce).
struct Collective {
  double alpha_s = 0, beta_s_per_byte = 0;
};

// `hosts` of ranks / hosts ranks each. A ring over all ranks goes at the pace of its slowest link, which is
// the one between hosts; inside a host only all_gather, reduce_scatter and all_reduce count.
struct Device {
  int64_t ranks = 1, hosts = 1;
  Collective all_gather, reduce_scatter, all_reduce;
  Collective between_hosts;  // of one ring step; not faster than inside a host
  double exposed = 1;        // how much longer a step gets for each second of communication
  double optimizer_s_per_byte = 0;
  double recompute_slowdown = 1;  // what a forward that is computed again takes, over the first time
};

// Note [Versions of the costs]
// A certificate proves what it proves of the costs that the search had. Plans are kept for years, so older
// versions are still computed, to check them by (osdp/plan/searched.py says what each version counts):
//   5: nor the gradient that completes a bucket under mixed precision.
//   4: nothing was added for the sum of several micro-batches.
//   3: on accelerators the reserve had one unit less.
//   2: the gradient that a backward makes was in the reserve, not in its operator's phase, unless it is made
//      in place; of small tensors all of a bucket counted as copied.
//   1: nor were the copies of mixed precision counted, nor parameters that one module reads several times;
//      tied ones were no transient.
inline constexpr int64_t kCostVersion = 6;

// What the search may choose from, and what the training step is like.
struct Space {
  Cost cost = Cost::Osdp;
  std::vector<Mode> modes;
  std::vector<int64_t> granularities;  // > 1; those that divide the operator's dimension are tried
  int64_t optimizer_bytes_per_parameter_byte = 2;  // AdamW: two moments
  int64_t bucket_bytes = int64_t{4} << 20;         // NO_SHARD gradients reduced together
  double slice_overhead_s = 0;                     // of each further slice of a split operator, per step
  int64_t cost_version = kCostVersion;
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
