// Sums and means of gradients, computed on the lane.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/kernels.hpp"

namespace osdp::runtime {

// The kernels' name for a dtype; empty for those that they do not know.
std::optional<kernels::DType> kernel_dtype(at::ScalarType dtype);

// sum += factor * addend; flat or of one shape. On the lane's thread the compute threads must be left alone:
// the CPU kernels are single-threaded, where torch's own would open a pool of its own beside theirs.
void add_into(at::Tensor sum, const at::Tensor& addend, double factor = 1.0);

// tensor *= factor.
void scale_by(at::Tensor tensor, double factor);

}  // namespace osdp::runtime
