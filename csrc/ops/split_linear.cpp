// The kernels below autograd, for every device.
#include "ops/split_linear.hpp"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/products.hpp"
#include "ops/split_shape.hpp"
#include "ops/weight_slices.hpp"

namespace osdp::ops {
namespace {

// Note [One slice at a time]
//   split  forward                                     grad_x
//   out    y[:, rows_i] = x W_i^T + bias[rows_i]       sum_i gout[:, rows_i] W_i
//   in     y = bias + sum_i x[:, cols_i] W_i^T         grad_x[:, cols_i] = gout W_i
// with W_i as the product needs it, which is [in, out] in a transposed weight. So a split that writes columns
// in one direction sums in the other. Forward iterates over 0..g-1; backward iterates in reverse, so that the
// slice gathered last is acquired first. It releases W_i before it computes the gradient of W_i, so that
// never both exist here.

// [..., features] as [N, features] with unit or BLAS-able strides; a view if x allows it.
at::Tensor as_rows(const at::Tensor& t, int64_t features) {
  int64_t rows = 1;
  for (int64_t d = 0; d < t.dim() - 1; ++d) rows *= t.size(d);
  at::Tensor flat = t.reshape({rows, features});
  const bool by_rows = flat.stride(1) == 1 && flat.stride(0) >= features;
  const bool by_cols = flat.stride(0) == 1 && flat.stride(1) >= rows;
  if (by_rows || by_cols) return flat;
  return flat.contiguous();  // expanded (such as the gradient of a sum): copied once, not once per slice
}

std::vector<int64_t> with_last(const at::Tensor& t, int64_t features) {
  auto sizes = t.sizes().vec();
  sizes.back() = features;
  return sizes;
}

void check_operands(const SplitShape& shape, const at::Tensor& x, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias, int64_t source) {
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) == shape.in_features, "osdp::split_linear: x is ", x.sizes(),
              "; its last dimension must be in_features, ", shape.in_features);
  TORCH_CHECK_TYPE(x.is_floating_point(), "osdp::split_linear: x is ", x.scalar_type(),
                   "; expected floating point");
  TORCH_CHECK(source != 0 || weight.scalar_type() == x.scalar_type(), "osdp::split_linear: x is ",
              x.scalar_type(), " but the weight is ", weight.scalar_type());
  if (!bias.has_value()) return;
  TORCH_CHECK(bias->dim() == 1 && bias->size(0) == shape.out_features, "osdp::split_linear: bias is ",
              bias->sizes(), "; expected [", shape.out_features, "]");
  TORCH_CHECK(bias->scalar_type() == x.scalar_type(), "osdp::split_linear: x is ", x.scalar_type(),
              " but the bias is ", bias->scalar_type());
}

std::optional<at::Tensor> defined(const std::optional<at::Tensor>& t) {
  return t.has_value() && t->defined() ? t : std::nullopt;
}

at::Tensor forward_kernel(const at::Tensor& x, const at::Tensor& weight,
                          const std::optional<at::Tensor>& maybe_bias, int64_t out_features,
                          int64_t in_features, int64_t granularity, int64_t split, bool transposed,
                          int64_t source) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const SplitShape shape(out_features, in_features, granularity, split, transposed);
  const auto bias = defined(maybe_bias);
  check_operands(shape, x, weight, bias, source);
  const WeightSlices slices(shape, weight, source);
  const at::Tensor rows = as_rows(x, in_features);
  const auto acquire = [&](int64_t i) {
    return slices.acquire(i, i + 1 < granularity ? i + 1 : -1, x.scalar_type(), x.device());
  };
  const auto inputs_first = [&](const AcquiredSlice& w) { return transposed ? w.tensor() : w.tensor().t(); };
  if (shape.by_out()) {
    at::Tensor y = at::empty({rows.size(0), out_features}, x.options());
    for (int64_t i = 0; i < granularity; ++i) {
      const AcquiredSlice w = acquire(i);
      product_into_columns(
          y, shape.begin(i), rows, inputs_first(w),
          bias ? std::optional(bias->narrow(0, shape.begin(i), shape.width(i))) : std::nullopt);
    }
    return y.view(with_last(x, out_features));
  }
  ProductSum sum(rows.size(0), out_features, x.options(), bias);
  for (int64_t i = 0; i < granularity; ++i) {
    const AcquiredSlice w = acquire(i);
    sum.add(rows.narrow(1, shape.begin(i), shape.width(i)), inputs_first(w));
  }
  return std::move(sum).take().view(with_last(x, out_features));
}

// Stores the gradients of the slices: in one tensor of the weight's layout, or at the source.
class WeightGradients {
 public:
  WeightGradients(const SplitShape& shape, SliceSource* source, const at::TensorOptions& options,
                  at::ScalarType dtype)
      : shape_(shape), source_(source) {
    if (source_ == nullptr) all_ = at::empty({shape.packed_rows(), shape.slice_cols()}, options.dtype(dtype));
  }

  // Of the slice that made the outputs with gradient `gout` from the inputs `x`.
  void put(int64_t index, const at::Tensor& gout, const at::Tensor& x) {
    const at::Tensor &a = shape_.transposed ? x : gout, &b = shape_.transposed ? gout : x;
    if (source_ != nullptr) {
      source_->put_grad(index, at::mm(a.t(), b));
      return;
    }
    at::Tensor part = all_.narrow(0, shape_.packed_begin(index), shape_.slice_rows(index));
    at::mm_out(part, a.t(), b);
  }

  at::Tensor take() && { return std::move(all_); }

 private:
  SplitShape shape_;
  SliceSource* source_;
  at::Tensor all_;
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward_kernel(
    const at::Tensor& grad, const std::optional<at::Tensor>& maybe_x, const std::optional<at::Tensor>& weight,
    int64_t out_features, int64_t in_features, int64_t granularity, int64_t split, bool transposed,
    int64_t source, at::ScalarType weight_dtype, std::array<bool, 3> output_mask) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const SplitShape shape(out_features, in_features, granularity, split, transposed);
  const auto [want_x, want_weight, want_bias] = output_mask;
  TORCH_CHECK(grad.dim() >= 1 && grad.size(-1) == out_features, "osdp::split_linear_backward: grad is ",
              grad.sizes(), "; its last dimension must be out_features, ", out_features);
  const at::Tensor gout = as_rows(grad, out_features);
  const int64_t n = gout.size(0);
  const auto x = defined(maybe_x);
  TORCH_CHECK(!want_weight || x, "osdp::split_linear_backward: the weight's gradient needs x");
  const at::Tensor rows = want_weight ? as_rows(*x, in_features) : at::Tensor();
  TORCH_CHECK(!want_weight || rows.size(0) == n, "osdp::split_linear_backward: x has ",
              want_weight ? rows.size(0) : 0, " rows, grad has ", n);

  at::Tensor grad_x, grad_weight, grad_bias;
  if (want_bias) grad_bias = gout.sum(0);
  if (!want_x && !want_weight) return {grad_x, grad_weight, grad_bias};

  // Without grad_x no slice is acquired, and the tensor that holds them all need not be given.
  const bool needs_slices = want_x || source != 0;
  std::optional<WeightSlices> slices;
  if (needs_slices) slices.emplace(shape, weight, source);
  std::optional<ProductSum> sum;
  if (want_x && shape.by_out()) sum.emplace(n, in_features, grad.options());
  if (want_x && !shape.by_out()) grad_x = at::empty({n, in_features}, grad.options());
  std::optional<WeightGradients> weight_gradients;
  if (want_weight)
    weight_gradients.emplace(shape, slices ? slices->source() : nullptr, grad.options(), weight_dtype);

  const auto outputs_first = [&](const AcquiredSlice& w) { return transposed ? w.tensor().t() : w.tensor(); };
  for (int64_t i = granularity - 1; i >= 0; --i) {
    const at::Tensor gout_i = shape.by_out() ? gout.narrow(1, shape.begin(i), shape.width(i)) : gout;
    if (want_x) {
      const AcquiredSlice w = slices->acquire(i, i - 1, grad.scalar_type(), grad.device());
      shape.by_out() ? sum->add(gout_i, outputs_first(w))
                     : product_into_columns(grad_x, shape.begin(i), gout, outputs_first(w));
    }
    if (want_weight)
      weight_gradients->put(i, gout_i,
                            shape.by_out() ? rows : rows.narrow(1, shape.begin(i), shape.width(i)));
  }
  if (sum) grad_x = std::move(*sum).take();
  if (want_x) grad_x = grad_x.view(with_last(grad, in_features));
  if (want_weight) grad_weight = std::move(*weight_gradients).take();
  return {grad_x, grad_weight, grad_bias};
}

}  // namespace

TORCH_LIBRARY_IMPL(osdp, CompositeExplicitAutograd, m) {
  m.impl("split_linear", forward_kernel);
  m.impl("split_linear_backward", backward_kernel);
}

}  // namespace osdp::ops
