// The layers of split_embedding.hpp above the kernels: dispatcher calls and autograd. Autocast leaves
// look-ups as they are.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/not_twice.hpp"
#include "ops/split_embedding.hpp"

namespace osdp::ops {

at::Tensor split_embedding(const at::Tensor& indices, const at::Tensor& weight, int64_t rows, int64_t columns,
                           int64_t padding_idx, int64_t granularity, int64_t split, int64_t source) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("osdp::split_embedding", "")
                             .typed<decltype(split_embedding)>();
  return op.call(indices, weight, rows, columns, padding_idx, granularity, split, source);
}

at::Tensor split_embedding_backward(const at::Tensor& grad, const at::Tensor& indices, int64_t rows,
                                    int64_t columns, int64_t padding_idx, int64_t granularity, int64_t split,
                                    int64_t source, at::ScalarType weight_dtype) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("osdp::split_embedding_backward", "")
                             .typed<decltype(split_embedding_backward)>();
  return op.call(grad, indices, rows, columns, padding_idx, granularity, split, source, weight_dtype);
}

namespace {

// Note [What is saved] in split_linear_autograd.cpp: the table stays an input of the node. Its version does
// not matter, since backward does not read it.
class SplitEmbedding : public torch::autograd::Function<SplitEmbedding> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& indices,
                            const at::Tensor& weight, int64_t rows, int64_t columns, int64_t padding_idx,
                            int64_t granularity, int64_t split, int64_t source) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (weight.requires_grad()) ctx->save_for_backward({indices});
    ctx->saved_data["shape"] = std::vector<int64_t>{
        rows, columns, padding_idx, granularity, split, source, static_cast<int64_t>(weight.scalar_type())};
    return split_embedding(indices, weight, rows, columns, padding_idx, granularity, split, source);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    torch::autograd::variable_list results(8);
    if (!grads[0].defined() || !ctx->needs_input_grad(1)) return results;
    const auto s = ctx->saved_data["shape"].toIntVector();
    results[1] = split_embedding_backward(grads[0], ctx->get_saved_variables()[0], s[0], s[1], s[2], s[3],
                                          s[4], s[5], static_cast<at::ScalarType>(s[6]));
    return results;
  }
};

at::Tensor look_up_with_graph(const at::Tensor& indices, const at::Tensor& weight, int64_t rows,
                              int64_t columns, int64_t padding_idx, int64_t granularity, int64_t split,
                              int64_t source) {
  return SplitEmbedding::apply(indices, weight, rows, columns, padding_idx, granularity, split, source);
}

at::Tensor look_up_backward_once(const at::Tensor& grad, const at::Tensor& indices, int64_t rows,
                                 int64_t columns, int64_t padding_idx, int64_t granularity, int64_t split,
                                 int64_t source, at::ScalarType weight_dtype) {
  at::Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    result = split_embedding_backward(grad, indices, rows, columns, padding_idx, granularity, split, source,
                                      weight_dtype);
  }
  if (!result.defined() || !at::GradMode::is_enabled() || !grad.requires_grad()) return result;
  return NotTwice::apply("osdp::split_embedding", grad, std::nullopt, std::nullopt,
                         torch::autograd::variable_list{result})[0];
}

}  // namespace

TORCH_LIBRARY_IMPL(osdp, Autograd, m) {
  m.impl("split_embedding", look_up_with_graph);
  m.impl("split_embedding_backward", look_up_backward_once);
}

}  // namespace osdp::ops
