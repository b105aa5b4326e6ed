// The split matrix product for C++ callers: y = x W^T + bias with W used slice by slice.
//
// Both functions go through the dispatcher (ops osdp::split_linear and osdp::split_linear_backward, with
// schemas in library.cpp), so autocast, autograd, FakeTensor and compile see them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

namespace osdp::ops {

// x: [..., in_features]; bias: [out_features]; returns [..., out_features] in x's dtype.
// source == 0: weight holds all slices, stacked along dimension 0: [out, in] for split out (the ordinary
// weight), [granularity * out, in / granularity] for split in; its gradient is returned in that layout.
// transposed: the ordinary weight is [in, out], and split in has its rows.
// source != 0: slices come from find_source(source), and their gradients go there. weight is the parameter,
// whatever data it shows: it is not read and gets no gradient from this op, but its AccumulateGrad node runs
// after the last put_grad.
at::Tensor split_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                        int64_t out_features, int64_t in_features, int64_t granularity, int64_t split,
                        bool transposed, int64_t source);

// Gradients of x, weight and bias; undefined if `output_mask` is false for them, and always for the weight of
// a source. x is needed only for the weight's gradient, and weight (source == 0) only for that of x.
// weight_dtype: the dtype of the weight's gradient, also of the gradients given to put_grad.
std::tuple<at::Tensor, at::Tensor, at::Tensor> split_linear_backward(
    const at::Tensor& grad, const std::optional<at::Tensor>& x, const std::optional<at::Tensor>& weight,
    int64_t out_features, int64_t in_features, int64_t granularity, int64_t split, bool transposed,
    int64_t source, at::ScalarType weight_dtype, std::array<bool, 3> output_mask);

}  // namespace osdp::ops
