#include "runtime/arithmetic.hpp"

namespace osdp::runtime {
std::optional<kernels::DType> kernel_dtype(at::ScalarType dtype) {
  switch (dtype) {
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

namespace {

// Where the CPU kernels can take the tensor, its dtype.
std::optional<kernels::DType> taken_as(const at::Tensor& t) {
  return t.is_cpu() && t.is_contiguous() ? kernel_dtype(t.scalar_type()) : std::nullopt;
}

}  // namespace

void add_into(at::Tensor sum, const at::Tensor& addend, double factor) {
  const auto dtype = taken_as(sum), added = taken_as(addend);
  if (dtype && added) {
    kernels::accumulate(kernels::Device::CPU, sum.mutable_data_ptr(), *dtype, addend.const_data_ptr(), *added,
                        sum.numel(), factor);
  } else {
    sum.add_(addend, factor);
  }
}

void scale_by(at::Tensor tensor, double factor) {
  if (const auto dtype = taken_as(tensor))
    kernels::scale(kernels::Device::CPU, tensor.mutable_data_ptr(), *dtype, tensor.numel(), factor);
  else
    tensor.mul_(factor);
}

}  // namespace osdp::runtime
