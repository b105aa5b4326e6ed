// Description of the model to be planned: its operators in execution order, and its blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace osdp::search {

// A parameter tensor: `rows` along its first dimension larger than 1, of `row_bytes` each. Rank r holds rows
// [r c, (r+1) c) with c = ceil(rows / ranks).
struct Tensor {
  int64_t rows = 0, row_bytes = 0;
  bool trainable = true;
  bool shardable = true;  // false: zero-dimensional, always replicated
  // Mixed precision: bytes of a row in the dtype of gathering and computation, and of its gradient in the
  // dtype of averaging. 0: the same as row_bytes.
  int64_t compute_row_bytes = 0, reduce_row_bytes = 0;
  int64_t item_bytes = 4;  // of an element as stored
  int64_t bytes() const { return rows * row_bytes; }
  // Of the rank that holds most, if so many share the rows.
  int64_t part_bytes(int64_t ranks) const { return (rows + ranks - 1) / ranks * row_bytes; }
  // The rows of the ranks in the same place of all hosts: Note [Between hosts, then inside] in
  // comm/two_level.hpp.
  int64_t rows_of_places(int64_t ranks, int64_t hosts) const {
    return shardable ? hosts * ((rows + ranks - 1) / ranks) : 0;
  }
  int64_t compute_row() const { return compute_row_bytes ? compute_row_bytes : row_bytes; }
  int64_t reduce_row() const { return reduce_row_bytes ? reduce_row_bytes : row_bytes; }
  int64_t compute_bytes() const { return rows * compute_row(); }
  int64_t reduce_bytes() const { return rows * reduce_row(); }
  // The copy in the compute dtype that a rank with the whole tensor keeps during a step.
  int64_t copy_bytes() const {
    return compute_row_bytes && compute_row_bytes != row_bytes ? compute_bytes() : 0;
  }
};

// What an operator computes, in seconds: both passes, and the forward of a recomputation.
struct ComputeTime {
  double both_per_sample = 0, both_fixed = 0, again_per_sample = 0, again_fixed = 0;
  bool operator==(const ComputeTime&) const = default;
};

// Two operators of which each is large enough not to share its unit with the other, and between which nothing
// large has parameters: Notes [Neighbours] and [Turns] in problem/step_bound.hpp.
struct NeighbourPair {
  static constexpr int64_t kMostSlowdown =
      2;  // Device::recompute_slowdown above which in_recompute is left out
  int64_t earlier_bytes = 0, later_bytes = 0;  // as gathered; 0: no pair
  int64_t later_sent_bytes = 0;                // of the later one's reduction
  bool together = false;                       // in one block
  bool in_backward = false;                    // the earlier one is gathered after the later one's backward
  bool in_recompute = false;  // the later one is gathered for a recomputation, after the earlier one
  // The most that is computed between the two, in ps: in forward and backward.
  int64_t forward_per_sample = 0, backward_per_sample = 0, backward_fixed = 0;
  // On streams, where both are trained: the most that is computed from the later one's reduction to the
  // earlier one's, in ps, if no recomputation lies between.
  bool in_turn = false;
  int64_t turn_per_sample = 0, turn_fixed = 0;
  // Note [Idle lane] in problem/step_bound.hpp: what the two compute, whether the later one ends its block,
  // and the most that is gathered between them: bytes, and collectives.
  ComputeTime earlier_time, later_time;
  bool ends_block = false;
  int64_t between_bytes = 0, between_gathers = 0;
  bool operator==(const NeighbourPair&) const = default;
};

// What an operator's place in the step decides, whatever the plan: read by the step bound alone
// (Note [Step bound] in problem/step_bound.hpp), and set by the planner (planner/step_positions.hpp).
struct StepPosition {
  // The part of a latency that each of its collectives has at least, in parts of kLatency: 1 if no unit holds
  // it and another operator like it; of small operators, which share units, their part of the largest unit.
  static constexpr int64_t kLatency = int64_t{1} << 30;
  int64_t latency = 0;
  int64_t forward_gathers = 1;  // the fewest in a forward, if it is not kept gathered
  bool gathered_again = true;   // its recomputation gathers it once more
  bool end_unknown = false;     // whether it ends forward does not follow from its option
  bool first = false;           // nothing computes before it in forward, or after it in backward
  bool last = false;            // nothing is gathered after it in forward, or reduced before it in backward
  // The unit that is gathered last in forward stays gathered: the bytes of that gather, which backward does
  // without, if this operator is sharded, and how much more may be saved if it is replicated.
  int64_t ends_forward_bytes = 0, lets_end_bytes = 0;
  int64_t ends_forward_gathers = 0, lets_end_gathers = 0;
  bool saved_in_forward = false;  // those of a module that is called several times, after its first call
  // What a recomputation requests last stays gathered if backward begins with it. Whether that may be a slice
  // of this operator, whatever the others' options; and the most bytes of one of another operator if this one
  // is replicated, or (`lets_any`) whatever its option.
  bool recomputed_last = false, lets_any = false;
  int64_t lets_slice_bytes = 0;
  NeighbourPair earlier{}, later{};
  // Note [Gradients that are left] in problem/phases.hpp: in how many phases before its own this operator's
  // gradient is, and whether another one's is in its own phase.
  int64_t left_phases = 0;
  bool sees_left = false;
  int64_t slice_calls = 1;  // calls in a forward that acquire its slices, if it is split; one per module
  bool operator==(const StepPosition&) const = default;
};

struct Operator {
  std::string name;
  std::vector<Tensor> tensors;                // empty: only compute time and activations count
  int split_tensor = -1;                      // the tensor that can be sliced, or -1
  int64_t out_features = 0, in_features = 0;  // of split_tensor; of a table its rows and columns
  int64_t rows_per_sample = 0;                // of the products with split_tensor, per call
  int64_t calls = 1;   // calls, in one forward, of all modules that read these parameters
  int64_t places = 1;  // number of those modules; above 1 for tied parameters
  int block = -1;      // index of the recomputable block it is in, or -1
  int64_t saved_bytes_per_sample = 0, saved_bytes_fixed = 0;
  int64_t work_bytes_per_sample = 0, work_bytes_fixed = 0;   // see Note [Work]
  double compute_s_per_sample = 0, compute_s_fixed = 0;      // forward and backward
  double recompute_s_per_sample = 0, recompute_s_fixed = 0;  // forward
  // By number of slices: the seconds that a micro-batch takes longer in these. Where a number is missing,
  // each slice after the first takes Space::slice_overhead_s.
  std::vector<std::pair<int64_t, double>> slices_s;
  StepPosition position;
  ComputeTime time() const {
    return {compute_s_per_sample, compute_s_fixed, recompute_s_per_sample, recompute_s_fixed};
  }
  int64_t forward_work_bytes_per_sample = 0, forward_work_bytes_fixed = 0;  // see Note [Work]
  int64_t backward_work_bytes_per_sample = 0, backward_work_bytes_fixed = 0;
  // Of its places those, the first in execution order, that look rows of split_tensor up (nn.Embedding):
  // their backward makes the gradients of its slices, but gathers none.
  int64_t look_ups = 0;
  bool transposed = false;  // split_tensor is stored as [in, out] (transformers' Conv1D)
  // split_tensor is the weight of a convolution, [out, in, ...]: of its outputs alone there are slices, and
  // in_features counts the weights of one output.
  bool convolution = false;
  int64_t waiting_gradient_bytes = 0;  // part of its work: see Note [Gradients that wait] in phases.hpp
};

// Whether backward makes several gradients of split_tensor, which autograd sums unless it is computed in
// slices.
inline bool sums_gradients(const Operator& op) {
  return op.split_tensor >= 0 && (op.places > 1 || op.calls > 1) && op.tensors[op.split_tensor].trainable;
}

// Of an operator that sums gradients, how much less work there is if it is computed in slices: in operators
// after it, and beyond that in its own phase.
struct LessInSlices {
  int64_t after = 0, own = 0;
};
inline LessInSlices less_in_slices(const Operator& op) {
  if (!sums_gradients(op)) return {};
  const int64_t gradient = op.tensors[op.split_tensor].compute_bytes();
  const int64_t after = std::min(gradient, op.waiting_gradient_bytes);
  return {after, std::min(gradient, op.waiting_gradient_bytes - after)};
}

// The part of a convolution's work that its kernels make of the weight: copies in another layout, on CPUs
// (osdp/description/aten_workspaces.py). Those of a slice are as large as the slice.
inline int64_t copies_of_weight(const Operator& op) {
  if (!op.convolution) return 0;
  const int64_t fixed = std::max<int64_t>(0, op.work_bytes_fixed - op.waiting_gradient_bytes);
  return std::min({fixed, op.backward_work_bytes_fixed, op.tensors[op.split_tensor].compute_bytes()});
}

// Tensors up to this size are packed into a flat copy for communication (csrc/comm/packing.hpp: kSmallBytes).
inline constexpr int64_t kSmallTensorBytes = 64 << 10;

struct Block {
  std::string name;
  int64_t input_bytes_per_sample = 0;  // kept when the block is recomputed
};

// Operators in execution order.
struct Model {
  std::vector<Operator> operators;
  std::vector<Block> blocks;
  int64_t input_bytes_per_sample = 0;
  int64_t buffer_bytes = 0;  // registered buffers of its modules: on every rank, in every phase
};

}  // namespace osdp::search
