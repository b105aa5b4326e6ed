#include "ops/split_convolution.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "ops/accumulate.hpp"
#include "ops/not_twice.hpp"
#include "ops/slice_version.hpp"
#include "ops/split_shape.hpp"
#include "ops/weight_slices.hpp"

namespace osdp::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Note [Convolutions in slices]
// Slice i is the weights of some outputs (channels), which it makes by itself: a convolution with fewer of
// them. Each gives a term of the input's gradient; terms are summed as products of slices are (ProductSum in
// products.hpp). torch has one function for both gradients, and its backends read the weight for the sizes
// alone where its own gradient is asked for; so a slice stays until its gradient is made, and where the input
// has no gradient none is acquired: memory of its sizes is in its place.

struct Slices {
  SplitShape shape;
  WeightSlices weights;
  Convolution of;

  Slices(const Convolution& convolution, int64_t granularity, int64_t source)
      : shape(convolution.weight[0], c10::multiply_integers(convolution.weight) / convolution.weight[0],
              granularity, static_cast<int64_t>(SplitDim::Out)),
        weights(shape, std::nullopt, source),
        of(convolution) {}

  std::vector<int64_t> sizes(int64_t i) const {
    std::vector<int64_t> found = of.weight;
    found[0] = shape.width(i);
    return found;
  }
  std::vector<int64_t> none() const { return std::vector<int64_t>(of.stride.size(), 0); }
};

at::Tensor outputs(const Slices& slices, const at::Tensor& x, const std::optional<at::Tensor>& bias) {
  const SplitShape& shape = slices.shape;
  at::Tensor y;
  for (int64_t i = 0; i < shape.granularity; ++i) {
    const int64_t begin = shape.begin(i), width = shape.width(i);
    const AcquiredSlice w =
        slices.weights.acquire(i, i + 1 < shape.granularity ? i + 1 : -1, x.scalar_type(), x.device());
    const at::Tensor part = at::convolution(
        x, w.tensor(), bias ? std::optional(bias->narrow(0, begin, width)) : std::nullopt, slices.of.stride,
        slices.of.padding, slices.of.dilation, /*transposed=*/false, slices.none(), /*groups=*/1);
    if (!y.defined()) {
      std::vector<int64_t> sizes = part.sizes().vec();
      sizes[1] = shape.out_features;
      y = at::empty(sizes, part.options().memory_format(part.suggest_memory_format()));
    }
    y.narrow(1, begin, width).copy_(part);
  }
  return y;
}

// The gradient of x, if wanted; those of the slices go to the source.
at::Tensor gradients(const Slices& slices, const at::Tensor& grad, const at::Tensor& x, bool want_x,
                     bool want_weight) {
  const SplitShape& shape = slices.shape;
  at::Tensor sum;
  for (int64_t i = shape.granularity - 1; i >= 0; --i) {
    const at::Tensor own =
        grad.narrow(1, shape.begin(i), shape.width(i)).contiguous(grad.suggest_memory_format());
    at::Tensor of_x, of_slice;
    {
      std::optional<AcquiredSlice> w;
      if (want_x) w.emplace(slices.weights.acquire(i, i - 1, grad.scalar_type(), grad.device()));
      std::tie(of_x, of_slice, std::ignore) = at::convolution_backward(
          own, x, w ? w->tensor() : at::empty(slices.sizes(i), grad.options()), std::nullopt,
          slices.of.stride, slices.of.padding, slices.of.dilation, /*transposed=*/false, slices.none(),
          /*groups=*/1, {want_x, want_weight, false});
    }
    if (want_weight) slices.weights.source()->put_grad(i, of_slice.contiguous());
    if (!want_x) continue;
    const bool narrow = grad.scalar_type() == at::kBFloat16 || grad.scalar_type() == at::kHalf;
    if (!sum.defined())
      sum = narrow ? of_x.to(at::kFloat) : of_x;
    else
      accumulate(sum, of_x);
  }
  return sum.defined() ? sum.to(grad.scalar_type()) : sum;
}

// Note [What is saved] in split_linear_autograd.cpp holds here, too; x is saved as torch's own convolution
// does.
class SplitConvolution : public torch::autograd::Function<SplitConvolution> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const Convolution& convolution,
                            int64_t granularity, int64_t source) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({x});
    ctx->saved_data["weight_sizes"] = convolution.weight;
    ctx->saved_data["stride"] = convolution.stride;
    ctx->saved_data["padding"] = convolution.padding;
    ctx->saved_data["dilation"] = convolution.dilation;
    ctx->saved_data["granularity"] = granularity;
    ctx->saved_data["source"] = source;
    ctx->saved_data["has_bias"] = bias.has_value();
    if (x.requires_grad()) note_version(ctx, weight);
    return outputs(Slices(convolution, granularity, source), x, bias);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list results(6);
    if (!grads[0].defined()) return results;
    const at::Tensor x = ctx->get_saved_variables()[0], &grad = grads[0];
    const auto list = [&](const char* name) { return ctx->saved_data[name].toIntVector(); };
    const int64_t source = ctx->saved_data["source"].toInt();
    check_version(ctx, source);
    const bool want_x = ctx->needs_input_grad(0), want_weight = ctx->needs_input_grad(1);
    {
      const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      if (want_x || want_weight)
        results[0] =
            gradients(Slices({list("weight_sizes"), list("stride"), list("padding"), list("dilation")},
                             ctx->saved_data["granularity"].toInt(), source),
                      grad, x, want_x, want_weight);
      if (ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(2)) {
        std::vector<int64_t> others{0};
        for (int64_t d = 2; d < grad.dim(); ++d) others.push_back(d);
        results[2] = grad.sum(others);
      }
    }
    if (!at::GradMode::is_enabled()) return results;
    for (at::Tensor& t : results)
      if (t.defined())
        t = NotTwice::apply("osdp's convolution in slices", grad, x, std::nullopt, variable_list{t})[0];
    return results;
  }
};

}  // namespace

at::Tensor split_convolution(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, const Convolution& convolution,
                             int64_t granularity, int64_t source) {
  const auto device = x.device().type();
  const bool lower = at::autocast::is_autocast_enabled(device);
  const auto cast = [&](const at::Tensor& t) {
    return lower ? at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device) : t;
  };
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return SplitConvolution::apply(cast(x), weight, bias ? std::optional(cast(*bias)) : std::nullopt,
                                 convolution, granularity, source);
}

}  // namespace osdp::ops
