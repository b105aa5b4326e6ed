// Input of a plan search besides the model: the machine, the search space, the memory limit and the batches.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
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

// A way in which NCCL runs collectives, an algorithm with a protocol: Note [Protocols of NCCL] in
// problem/collective_time.hpp.
enum class Algorithm : int { Ring, Tree, InSwitch };
inline constexpr std::array<const char*, 3> kAlgorithms{"ring", "tree", "in-switch"};
struct Protocol {
  Algorithm algorithm = Algorithm::Ring;
  double base_s = 0, inner_hop_s = 0, outer_hop_s = 0;  // latency, once and of each hop
  double bandwidth_share = 1;                           // of the links', that it reaches
  double most_bytes_per_s = 0;                          // 0: no limit but the links'
};
inline constexpr size_t kMostProtocols = 8;

// The host's memory, where the parts of operators rest that are offloaded. All ranks copy at the same time.
struct HostMemory {
  Collective copy;                  // of one rank, to or from its device: alpha + bytes beta
  double optimizer_s_per_byte = 0;  // of a step on the host, per byte of parameters that a rank updates
};

// `hosts` hosts with ranks / hosts ranks each. A ring over all ranks runs at the speed of its slowest link,
// the one between hosts; a ring inside a host uses the parameters of all_gather, reduce_scatter and
// all_reduce alone.
struct Device {
  int64_t ranks = 1, hosts = 1;
  Collective all_gather, reduce_scatter, all_reduce;
  Collective between_hosts;  // one ring step; not faster than inside a host
  double exposed = 1;        // seconds added to the step by each second of communication
  double optimizer_s_per_byte = 0;
  double recompute_slowdown = 1;  // time of a recomputed forward divided by that of the first
  double stolen = 0;  // seconds of computation lost per second of transfer beside it: simulate/simulate.hpp
  Collective delay;   // additional time of a ring's hop while this rank computes
  // At most kMostProtocols, a ring among them. None: all hops of a ring take what the slowest takes.
  std::vector<Protocol> protocols;
  HostMemory host;
};

// Shares of the compute form in the bounds of forward and of backward, and of the forms of the link, of
// averages and of reductions in that of backward, in 1024ths; the rest is that of the lane form. Note [Step
// bound] in problem/step_bound.hpp.
struct StepShares {
  static constexpr int64_t kWhole = 1024;
  int64_t forward = kWhole, backward = kWhole, link = 0, averages = 0, reductions = 0;
  bool operator==(const StepShares&) const = default;
};

// The weight of the waits of all pairs of neighbours with these bytes, as gathered, in 1024ths: Note
// [Neighbours] in problem/step_bound.hpp.
struct PairWeight {
  int64_t earlier_bytes = 0, later_bytes = 0, weight = 0;
  bool operator==(const PairWeight&) const = default;
};

// A range of the memory that the unit in use and those gathered ahead of their use may take together: Note
// [Budget for gathering] in simulate/gather_budget.hpp.
struct GatherRange {
  int64_t least = 0, most = int64_t{1} << 61;
  bool operator==(const GatherRange&) const = default;
};

// Note [Stages of a pipeline]
// A stage runs the forwards of several micro-batches before the backward of the first of them: 1F1B as many
// as there are stages from it to the last one, GPipe all. It holds the activations of `in_flight`
// micro-batches (of recomputed blocks their inputs): those of one more or less through a forward and a
// backward, as in a step without a pipeline, those of the others in every phase.
// What is in memory throughout is communicated once a step: replicated parameters (NO_SHARD, and replicated
// slices) are averaged in the last micro-batch only; parameters that stay gathered (SHARD_GRAD_OP) are
// gathered in the first forward, stay until the last backward, and their gradients are summed in full,
// beside this rank's part (`.grad`), and reduced then. FULL_SHARD and HYBRID_SHARD are gathered and reduced
// in every micro-batch. In times of a micro-batch, what is communicated once counts as a part of
// `micro_batches`.
struct PipelineStage {
  int64_t in_flight = 1;
  int64_t micro_batches = 0;  // of every batch that is asked for; 0: not a stage
  bool once() const { return micro_batches > 0; }
  // Of what is communicated once.
  double part() const { return once() ? 1 / static_cast<double>(micro_batches) : 1; }
};

// What an optimizer keeps of a tensor, in bytes: `copies` as large as the tensor itself (moments of its
// dtype), and `per_256` for every 256 elements (moments of another dtype, and their scales); of a tensor that
// has fewer than `small` elements on a rank `small_item` for each element instead. AdamW: two moments.
struct OptimizerState {
  int64_t copies = 2, per_256 = 0, small = 0, small_item = 0;
  bool operator==(const OptimizerState&) const = default;
};

inline constexpr int64_t kMostBatch = 65536;  // bounds the batch size where activations cost no memory

// Micro-batch sizes from `least` to `most`.
struct BatchSizes {
  int64_t least = 1, most = kMostBatch;
  bool operator==(const BatchSizes&) const = default;
};

// The search space, and properties of the training step.
struct Space {
  Cost cost = Cost::Osdp;
  std::vector<Mode> modes;
  std::vector<int64_t> granularities;  // > 1; tried where split_of (slices.hpp) says how
  // Numbers of units that a plan may gather ahead; ascending, never empty.
  std::vector<int64_t> prefetches{1};
  OptimizerState optimizer;
  int64_t bucket_bytes = int64_t{4} << 20;  // NO_SHARD gradients reduced together
  double slice_overhead_s = 0;              // of each slice after the first of a split operator, per step
  std::optional<StepShares> shares;         // the objective is the step bound with these shares
  bool every_latency = false;        // with shares: each operator has a latency of its own; then not a bound
  bool separate_reductions = false;  // reductions have a lane of their own
  bool streams = false;              // memory of a reduction is freed when the host next waits for one
  std::vector<PairWeight> pairs;     // with shares; those left out weigh nothing
  int64_t most_transient_bytes = int64_t{1} << 61;  // of an option, where one of at most so many is left
  GatherRange gather;                               // with shares: of the plans that the bound is for
  BatchSizes of_sizes{0, 0};                        // and their micro-batches, where known
  // A part of the space: its bound counts what no certificate repeats, Notes [Turns] in step_bound.hpp and
  // [Sums of slices] in cost.hpp.
  bool divided = false;
  PipelineStage stage;
};

// Whether nothing is transferred: one rank, which offloads nothing.
inline bool moves_nothing(const Device& device, const Space& space) {
  return device.ranks == 1 &&
         std::none_of(space.modes.begin(), space.modes.end(), [](Mode m) { return traits(m).on_host; });
}

// The micro-batch size per rank and the number of micro-batches in one step.
struct Batch {
  int64_t size = 1, accumulation = 1;
  int64_t samples() const { return size * accumulation; }
  bool operator==(const Batch&) const = default;
};

// Batches from `least` to `most`, of equal accumulation.
struct BatchRange {
  Batch least, most;
};

struct Request {
  Device device;
  Space space;
  int64_t limit_bytes = 0;
  std::vector<Batch> batches;        // empty: every size from 1 to the largest that fits, one micro-batch
  BatchSizes sizes;                  // of these batches, the ones that are searched
  std::vector<Recompute> recompute;  // ways allowed for a block; never empty
  bool find_smallest = true;         // if nothing fits: search for the smallest feasible limit
  bool depth_first = false;          // the paper's search instead of the exact one (Cost::Paper only)
  bool smallest_first = false;       // for depth_first: options of least memory first (solve_dfs)

  // The batches that are searched; those of all sizes are one range.
  std::vector<BatchRange> ranges() const;

  bool has(Batch batch) const {
    return sizes.least <= batch.size && batch.size <= sizes.most &&
           (batches.empty() ? batch.accumulation == 1
                            : std::find(batches.begin(), batches.end(), batch) != batches.end());
  }

  // The smallest and the largest of their micro-batches.
  BatchSizes micro_batches() const;

  bool paper() const { return space.cost == Cost::Paper; }
  bool moves_nothing() const { return search::moves_nothing(device, space); }
};

// Whether the operators of a block are decided together. The paper's costs are a sum over operators.
inline bool decides_blocks(const Request& request) { return !request.paper(); }

inline std::vector<BatchRange> Request::ranges() const {
  if (batches.empty()) return {{{sizes.least, 1}, {sizes.most, 1}}};
  std::vector<BatchRange> found;
  for (const Batch& b : batches)
    if (sizes.least <= b.size && b.size <= sizes.most) found.push_back({b, b});
  return found;
}

inline BatchSizes Request::micro_batches() const {
  BatchSizes all{kMostBatch, 1};
  for (const auto& [first, last] : ranges())
    all = {std::min(all.least, first.size), std::max(all.most, last.size)};
  return all.least <= all.most ? all : BatchSizes{};
}

}  // namespace osdp::search
