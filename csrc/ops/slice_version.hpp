// The check that autograd makes for saved tensors, of a weight whose slices backward acquires again.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/slice_source.hpp"

namespace osdp::ops {

// In forward.
inline void note_version(torch::autograd::AutogradContext* ctx, const at::Tensor& weight) {
  if (weight.is_inference()) return;
  ctx->saved_data["weight"] = weight;
  ctx->saved_data["version"] = static_cast<int64_t>(weight._version());
}

// In backward. Throws c10::Error, naming the weight, if it has been changed in between.
inline void check_version(torch::autograd::AutogradContext* ctx, int64_t source) {
  const auto saved = ctx->saved_data.find("version");
  if (saved == ctx->saved_data.end()) return;
  const auto now = static_cast<int64_t>(ctx->saved_data["weight"].toTensor()._version());
  TORCH_CHECK(
      now == saved->second.toInt(),
      "one of the variables needed for gradient computation has been modified by an inplace operation: "
      "parameter '",
      find_source(source)->name(), "', computed in slices, is at version ", now, "; expected version ",
      saved->second.toInt(), " instead. Change parameters after backward, not between forward and backward.");
}

}  // namespace osdp::ops
