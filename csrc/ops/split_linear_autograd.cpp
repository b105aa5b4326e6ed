// The layers above the kernels: dispatcher calls, autograd, autocast.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/not_twice.hpp"
#include "ops/slice_version.hpp"
#include "ops/split_linear.hpp"

namespace osdp::ops {

at::Tensor split_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                        int64_t out_features, int64_t in_features, int64_t granularity, int64_t split,
                        bool transposed, int64_t source) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("osdp::split_linear", "")
                             .typed<decltype(split_linear)>();
  return op.call(x, weight, bias, out_features, in_features, granularity, split, transposed, source);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> split_linear_backward(
    const at::Tensor& grad, const std::optional<at::Tensor>& x, const std::optional<at::Tensor>& weight,
    int64_t out_features, int64_t in_features, int64_t granularity, int64_t split, bool transposed,
    int64_t source, at::ScalarType weight_dtype, std::array<bool, 3> output_mask) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("osdp::split_linear_backward", "")
                             .typed<decltype(split_linear_backward)>();
  return op.call(grad, x, weight, out_features, in_features, granularity, split, transposed, source,
                 weight_dtype, output_mask);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Note [What is saved]
// x is saved if the weight requires a gradient. The weight of a source is not saved: backward acquires its
// slices again. They must have the values of the forward, so the weight's version is compared instead. The
// weight stays an input of the node although its gradient goes to the source: so its AccumulateGrad node runs
// in this backward, after this node, and a hook on it knows that put_grad has been called for all slices.
class SplitLinear : public torch::autograd::Function<SplitLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, int64_t out_features, int64_t in_features,
                            int64_t granularity, int64_t split, bool transposed, int64_t source) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({weight.requires_grad() ? x : at::Tensor(),
                            source == 0 && x.requires_grad() ? weight : at::Tensor()});
    ctx->saved_data["shape"] =
        std::vector<int64_t>{out_features, in_features, granularity, split, source, transposed};
    ctx->saved_data["weight_dtype"] = static_cast<int64_t>(weight.scalar_type());
    ctx->saved_data["has_bias"] = bias.has_value() && bias->defined();
    if (source != 0 && x.requires_grad()) note_version(ctx, weight);
    return split_linear(x, weight, bias, out_features, in_features, granularity, split, transposed, source);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(9);
    const auto saved = ctx->get_saved_variables();
    const auto shape = ctx->saved_data["shape"].toIntVector();
    check_version(ctx, shape[4]);
    // needs_input_grad counts only tensors that were given: x, weight, and bias if there is one.
    const std::array<bool, 3> wanted = {ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                                        ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(2)};
    auto [grad_x, grad_weight, grad_bias] = split_linear_backward(
        grads[0], saved[0], saved[1], shape[0], shape[1], shape[2], shape[3], shape[5] != 0, shape[4],
        static_cast<at::ScalarType>(ctx->saved_data["weight_dtype"].toInt()), wanted);
    return {grad_x, grad_weight, grad_bias, {}, {}, {}, {}, {}, {}};
  }
};

at::Tensor autograd_kernel(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, int64_t out_features, int64_t in_features,
                           int64_t granularity, int64_t split, bool transposed, int64_t source) {
  return SplitLinear::apply(x, weight, bias, out_features, in_features, granularity, split, transposed,
                            source);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> autograd_backward_kernel(
    const at::Tensor& grad, const std::optional<at::Tensor>& x, const std::optional<at::Tensor>& weight,
    int64_t out_features, int64_t in_features, int64_t granularity, int64_t split, bool transposed,
    int64_t source, at::ScalarType weight_dtype, std::array<bool, 3> output_mask) {
  std::array<at::Tensor, 3> results;
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::tie(results[0], results[1], results[2]) =
        split_linear_backward(grad, x, weight, out_features, in_features, granularity, split, transposed,
                              source, weight_dtype, output_mask);
  }
  const auto trains = [](const std::optional<at::Tensor>& t) { return t.has_value() && t->requires_grad(); };
  const bool tracked = at::GradMode::is_enabled() && (grad.requires_grad() || trains(x) || trains(weight));
  if (!tracked) return {results[0], results[1], results[2]};
  variable_list present;
  for (const auto& t : results) {
    if (t.defined()) present.push_back(t);
  }
  present = NotTwice::apply("osdp::split_linear", grad, x, weight, present);
  size_t next = 0;
  for (auto& t : results) {
    if (t.defined()) t = present[next++];
  }
  return {results[0], results[1], results[2]};
}

// Like autocast of linear: casts x, bias and a weight that is given to the lower precision. Slices of a
// source are cast when they are used, so that no shard is cast needlessly, and their gradients go to the
// source in the lower precision.
template <c10::DispatchKey key, c10::DeviceType device>
at::Tensor autocast_kernel(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, int64_t out_features, int64_t in_features,
                           int64_t granularity, int64_t split, bool transposed, int64_t source) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKeySet{key});
  const auto lower = at::autocast::get_autocast_dtype(device);
  const at::Tensor weight_cast = source == 0 ? at::autocast::cached_cast(lower, weight, device) : weight;
  return split_linear(at::autocast::cached_cast(lower, x, device), weight_cast,
                      at::autocast::cached_cast(lower, bias, device), out_features, in_features, granularity,
                      split, transposed, source);
}

}  // namespace

TORCH_LIBRARY_IMPL(osdp, Autograd, m) {
  m.impl("split_linear", autograd_kernel);
  m.impl("split_linear_backward", autograd_backward_kernel);
}

TORCH_LIBRARY_IMPL(osdp, AutocastCPU, m) {
  m.impl("split_linear", autocast_kernel<c10::DispatchKey::AutocastCPU, c10::DeviceType::CPU>);
}

TORCH_LIBRARY_IMPL(osdp, AutocastCUDA, m) {
  m.impl("split_linear", autocast_kernel<c10::DispatchKey::AutocastCUDA, c10::DeviceType::CUDA>);
}

}  // namespace osdp::ops
