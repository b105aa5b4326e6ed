// Description of the model to be planned: its operators in execution order, and its blocks.
#pragma once

#include <cstdint>
#include <string>
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
  int64_t bytes() const { return rows * row_bytes; }
  int64_t compute_bytes() const { return rows * (compute_row_bytes ? compute_row_bytes : row_bytes); }
  int64_t reduce_bytes() const { return rows * (reduce_row_bytes ? reduce_row_bytes : row_bytes); }
  // The copy in the compute dtype that a rank with the whole tensor keeps during a step.
  int64_t copy_bytes() const {
    return compute_row_bytes && compute_row_bytes != row_bytes ? compute_bytes() : 0;
  }
};

struct Operator {
  std::string name;
  std::vector<Tensor> tensors;                // empty: only compute time and activations count
  int split_tensor = -1;                      // the tensor that can be sliced, or -1
  int64_t out_features = 0, in_features = 0;  // of split_tensor
  int64_t calls = 1;   // calls, in one forward, of all modules that read these parameters
  int64_t places = 1;  // number of those modules; above 1 for tied parameters
  int block = -1;      // index of the recomputable block it is in, or -1
  int64_t saved_bytes_per_sample = 0, saved_bytes_fixed = 0;
  int64_t work_bytes_per_sample = 0, work_bytes_fixed = 0;  // see Note [Work]
  double compute_s_per_sample = 0, compute_s_fixed = 0;     // forward and backward
  double recompute_s_per_sample = 0;                        // forward
};

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
