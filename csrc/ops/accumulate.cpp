#include "ops/accumulate.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace osdp::ops {

std::optional<elementwise::DType> elementwise_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return elementwise::DType::Float32;
    case at::kDouble:
      return elementwise::DType::Float64;
    case at::kBFloat16:
      return elementwise::DType::BFloat16;
    case at::kHalf:
      return elementwise::DType::Float16;
    default:
      return std::nullopt;
  }
}

std::optional<elementwise::DType> elementwise_dtype(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() ? elementwise_dtype(tensor.scalar_type()) : std::nullopt;
}

void accumulate(at::Tensor sum, const at::Tensor& addend) {
  const auto to = elementwise_dtype(sum), from = elementwise_dtype(addend);
  if (!to || !from || to == from || sum.numel() != addend.numel()) {
    sum.add_(addend);
    return;
  }
  auto* dst = static_cast<char*>(sum.mutable_data_ptr());
  const auto* src = static_cast<const char*>(addend.const_data_ptr());
  const auto wide = static_cast<int64_t>(sum.element_size());
  const auto narrow = static_cast<int64_t>(addend.element_size());
  at::parallel_for(0, sum.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
    elementwise::accumulate(dst + begin * wide, *to, src + begin * narrow, *from, end - begin);
  });
}

}  // namespace osdp::ops
