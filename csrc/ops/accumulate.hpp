// Sums of tensors of two dtypes without a copy, on the computing thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "elementwise/elementwise.hpp"

namespace osdp::ops {

// The dtype in csrc/elementwise; nullopt for those that it does not support.
std::optional<elementwise::DType> elementwise_dtype(at::ScalarType dtype);

// The tensor's dtype, if csrc/elementwise can process the tensor.
std::optional<elementwise::DType> elementwise_dtype(const at::Tensor& tensor);

// sum += addend, in `sum`'s dtype; both of one size. On the CPU add_ of two dtypes copies all of `addend` to
// the wider one first: as much memory as `sum`, which no plan counts.
void accumulate(at::Tensor sum, const at::Tensor& addend);

}  // namespace osdp::ops
