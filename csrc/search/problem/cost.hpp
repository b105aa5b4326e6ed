// What one operator costs in memory and time under each way to shard it. Seconds come in as measured
// (doubles) and leave as integer picoseconds; everything after this is integers.
//
// Cost::Paper (section "Problem formulation" of the OSDP paper, N ranks, S bytes of parameters):
//   memory  M_model + b M_act                   (NO_SHARD), M_model / N + b M_act               (FULL_SHARD)
//   time    2 (N-1) (alpha + S/N beta) + b gamma (NO_SHARD), 3 (N-1) (alpha + S/N beta) + b gamma
//   (FULL_SHARD) of a split operator: the slices kept whole together as NO_SHARD, each sharded slice as
//   FULL_SHARD.
// Cost::Osdp: the runtime's, see docs/search.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "modes.hpp"

namespace osdp::search {

enum class Cost { Paper, Osdp };
using osdp::Mode;
using osdp::Recompute;
using osdp::Split;

// A parameter tensor: `rows` along its first dimension larger than 1, of `row_bytes` each. Rank r holds rows
// [r c, (r+1) c) with c = ceil(rows / ranks).
struct Tensor {
  int64_t rows = 0, row_bytes = 0;
  bool trainable = true;
  bool shardable = true;  // false: zero-dimensional, always whole
  // Mixed precision: a row as it is gathered and computed with, and its gradient as it is averaged. 0: the
  // same.
  int64_t compute_row_bytes = 0, reduce_row_bytes = 0;
  int64_t bytes() const { return rows * row_bytes; }
  int64_t compute_bytes() const { return rows * (compute_row_bytes ? compute_row_bytes : row_bytes); }
  int64_t reduce_bytes() const { return rows * (reduce_row_bytes ? reduce_row_bytes : row_bytes); }
  // What a rank that holds it whole keeps beside it during a step: a copy to compute with.
  int64_t copy_bytes() const {
    return compute_row_bytes && compute_row_bytes != row_bytes ? compute_bytes() : 0;
  }
};

struct Operator {
  std::string name;
  std::vector<Tensor> tensors;                // empty: only time and activations
  int split_tensor = -1;                      // the tensor that can be sliced, or -1
  int64_t out_features = 0, in_features = 0;  // of it
  int64_t calls = 1;                          // of the modules that read it, in one forward
  int64_t places = 1;                         // those modules: more than one where parameters are tied
  int block = -1;                             // index of the recomputable block it is in, or -1
  int64_t saved_bytes_per_sample = 0, saved_bytes_fixed = 0;
  int64_t work_bytes_per_sample = 0, work_bytes_fixed = 0;  // see Note [Work]
  double compute_s_per_sample = 0, compute_s_fixed = 0;     // forward and backward
  double recompute_s_per_sample = 0;                        // forward
};

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

// Smaller tensors travel together, through a copy (csrc/comm/packing.hpp: kSmallBytes).
inline constexpr int64_t kSmallTensorBytes = 64 << 10;

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

// One way to treat one operator.
struct Candidate {
  Mode mode = Mode::NoShard;
  int64_t granularity = 1, sharded_slices = 0;
  Split split = Split::None;
  int64_t state_bytes = 0;           // parameters, gradients and optimizer state on the fullest rank
  int64_t gradient_bytes = 0;        // of state_bytes: what is there only once backward has made it
  int64_t whole_gradient_bytes = 0;  // of gradient_bytes: made in place by the operator's backward
  // In the operator's own phase only: the gradient that its backward makes, in place or to be reduced.
  int64_t own_bytes = 0;
  int64_t gathered_bytes = 0;    // kept gathered from forward to backward
  int64_t held_bytes = 0;        // kept from a block's recomputation to its backward (Recompute::Hold)
  int64_t transient_bytes = 0;   // the largest full tensor that exists only while it is used
  int64_t communication_ps = 0;  // per micro-batch, with the slices' overhead
  int64_t optimizer_ps = 0;      // per step
};

// All candidates of an operator with parameters, NO_SHARD first. Throws InvalidProblem naming the operator.
std::vector<Candidate> candidates(const Operator& op, const Device& device, const Space& space,
                                  Recompute recompute);

// What one choice costs, also one that a search would not consider: `sharded` of `granularity` slices. The
// operator has parameters. Throws InvalidProblem where it cannot be computed in such slices.
Candidate candidate_of(const Operator& op, const Device& device, const Space& space, Recompute recompute,
                       Mode mode, int64_t granularity, int64_t sharded, Split split);

// Memory for averaging the gradients of what every rank holds in full. See Note [Averaging].
int64_t averaging_bytes(const std::vector<Operator>& operators, const Device& device, const Space& space,
                        bool accumulates);

// Seconds to picoseconds, rounded. Throws InvalidProblem naming `where` unless 0 <= seconds < 1e6.
int64_t picoseconds(double seconds, const std::string& where);

}  // namespace osdp::search
