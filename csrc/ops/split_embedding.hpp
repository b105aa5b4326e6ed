// The look-up of an nn.Embedding for C++ callers: y = weight[indices] with the table used slice by slice.
//
// Both functions go through the dispatcher (ops osdp::split_embedding and osdp::split_embedding_backward), so
// autograd, FakeTensor and compile see them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace osdp::ops {

// indices: [...] of int64 or int32, each in [0, rows); returns [..., columns] in the dtype of the slices.
// The table is [rows, columns]; it is sliced as the weight of a split product (split_linear.hpp): `split` 0
// slices rows, 1 columns, and `weight` and `source` are as there.
// Throws c10::IndexError for an index that is not in the table.
at::Tensor split_embedding(const at::Tensor& indices, const at::Tensor& weight, int64_t rows, int64_t columns,
                           int64_t padding_idx, int64_t granularity, int64_t split, int64_t source);

// The gradient of the table, in `weight_dtype`; undefined for a source, which is given the gradient slice by
// slice. No slice is acquired. Row `padding_idx` gets none; -1: there is no such row.
at::Tensor split_embedding_backward(const at::Tensor& grad, const at::Tensor& indices, int64_t rows,
                                    int64_t columns, int64_t padding_idx, int64_t granularity, int64_t split,
                                    int64_t source, at::ScalarType weight_dtype);

}  // namespace osdp::ops
