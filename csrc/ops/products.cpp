#include "ops/products.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "elementwise/elementwise.hpp"

namespace osdp::ops {
namespace {

// total (float) += product (16 bits). ATen's add_ of two dtypes makes a float copy of the whole product on
// the CPU.
void accumulate(at::Tensor& total, const at::Tensor& product) {
  if (!total.is_cpu()) {
    total.add_(product);  // one fused kernel
    return;
  }
  const auto dtype =
      product.scalar_type() == at::kHalf ? elementwise::DType::Float16 : elementwise::DType::BFloat16;
  auto* dst = static_cast<char*>(total.mutable_data_ptr());
  const auto* src = static_cast<const char*>(product.const_data_ptr());
  at::parallel_for(0, total.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
    elementwise::accumulate(dst + begin * 4, elementwise::DType::Float32, src + begin * 2, dtype,
                            end - begin);
  });
}

}  // namespace

void product_into_columns(at::Tensor& to, int64_t first, const at::Tensor& a, const at::Tensor& b,
                          const std::optional<at::Tensor>& bias) {
  at::Tensor columns = to.narrow(1, first, b.size(1));
  if (bias.has_value()) {
    at::addmm_out(columns, *bias, a, b);
  } else {
    at::mm_out(columns, a, b);
  }
}

ProductSum::ProductSum(int64_t rows, int64_t cols, const at::TensorOptions& options,
                       const std::optional<at::Tensor>& bias)
    : result_(at::empty({rows, cols}, options)), empty_(!bias.has_value()) {
  const auto dtype = result_.scalar_type();
  if (dtype == at::kBFloat16 || dtype == at::kHalf)
    total_ = at::empty({rows, cols}, options.dtype(at::kFloat));
  if (bias.has_value()) (total_.defined() ? total_ : result_).copy_(*bias);  // expands over the rows
}

void ProductSum::add(const at::Tensor& a, const at::Tensor& b) {
  if (!total_.defined()) {
    empty_ ? at::mm_out(result_, a, b) : result_.addmm_(a, b);
  } else {
    at::mm_out(result_, a, b);
    empty_ ? (void)total_.copy_(result_) : accumulate(total_, result_);
  }
  empty_ = false;
}

at::Tensor ProductSum::take() && {
  if (empty_) return result_.zero_();
  if (total_.defined()) result_.copy_(total_);
  return std::move(result_);
}

}  // namespace osdp::ops
