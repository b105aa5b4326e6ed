// Refuses second derivatives through an operator that computes a weight in slices: they would have to gather
// the slices a third time. The first derivative may be taken with create_graph=True; differentiating it is
// refused.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <string>

namespace osdp::ops {

class NotTwice : public torch::autograd::Function<NotTwice> {
 public:
  // Detached `results` of the operator's backward. The operands are separate arguments, since only these
  // become inputs of the node; `results` must not be one. `op`: the operator, for the error.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const std::string& op,
                                                const at::Tensor& grad, const std::optional<at::Tensor>& x,
                                                const std::optional<at::Tensor>& weight,
                                                const torch::autograd::variable_list& results) {
    ctx->saved_data["op"] = op;
    torch::autograd::variable_list out;
    for (const auto& result : results) out.push_back(result.detach());
    return out;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, ctx->saved_data["op"].toStringRef(),
                                " cannot be differentiated twice; give the operator granularity 1 in the "
                                "plan to use second derivatives through it");
  }
};

}  // namespace osdp::ops
