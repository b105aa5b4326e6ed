#include "ops/products.hpp"

#include <ATen/ATen.h>

#include "ops/accumulate.hpp"

namespace osdp::ops {

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
