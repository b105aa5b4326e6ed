#include "runtime/arithmetic.hpp"

#include <optional>

#include "kernels/kernels.hpp"

namespace osdp::runtime {
namespace {

// The kernels' name for the dtype of a tensor that they can take.
std::optional<kernels::DType> kernel_dtype(const at::Tensor& t) {
  if (!t.is_cpu() || !t.is_contiguous()) return std::nullopt;
  switch (t.scalar_type()) {
    case at::kFloat:
      return kernels::DType::Float32;
    case at::kDouble:
      return kernels::DType::Float64;
    case at::kBFloat16:
      return kernels::DType::BFloat16;
    case at::kHalf:
      return kernels::DType::Float16;
    default:
      return std::nullopt;
  }
}

}  // namespace

void add_into(at::Tensor sum, const at::Tensor& addend) {
  const auto dtype = kernel_dtype(sum);
  if (dtype && dtype == kernel_dtype(addend)) {
    kernels::accumulate(kernels::Device::CPU, sum.mutable_data_ptr(), *dtype, addend.const_data_ptr(), *dtype,
                        sum.numel(), 1.0);
  } else {
    sum.add_(addend);
  }
}

void scale_by(at::Tensor tensor, double factor) {
  if (const auto dtype = kernel_dtype(tensor))
    kernels::scale(kernels::Device::CPU, tensor.mutable_data_ptr(), *dtype, tensor.numel(), factor);
  else
    tensor.mul_(factor);
}

}  // namespace osdp::runtime
