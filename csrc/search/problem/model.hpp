// The model that is planned: its operators in execution order and its blocks.
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

// Smaller tensors travel together, through a copy (csrc/comm/packing.hpp: kSmallBytes).
inline constexpr int64_t kSmallTensorBytes = 64 << 10;

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

}  // namespace osdp::search
