// The two ways to combine the products of slices: as column blocks, or as a sum.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace osdp::ops {

// to[:, first : first + b.size(1)] = a b (+ bias); written in place, without a temporary. bias: [b.size(1)].
void product_into_columns(at::Tensor& to, int64_t first, const at::Tensor& a, const at::Tensor& b,
                          const std::optional<at::Tensor>& bias = std::nullopt);

// sum = bias + a_0 b_0 + a_1 b_1 + ... of [rows, cols]; without any term: bias, or zeros.
//
// float and double accumulate in the result itself. bfloat16 and half are summed in float, with each product
// rounded once, so that the error stays that of an unsplit product. This needs a float [rows, cols] beside
// the result.
class ProductSum {
 public:
  ProductSum(int64_t rows, int64_t cols, const at::TensorOptions& options,
             const std::optional<at::Tensor>& bias = std::nullopt);
  void add(const at::Tensor& a, const at::Tensor& b);
  at::Tensor take() &&;  // [rows, cols], contiguous

 private:
  at::Tensor result_;
  at::Tensor total_;  // undefined if result_ itself accumulates
  bool empty_;        // nothing added yet: result_ (or total_) is uninitialised
};

}  // namespace osdp::ops
