// The norm of tensors as in one process, where sharded models hold parts of some: for torch's own functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace osdp::runtime {

// The norm of `tensors`, as torch.nn.utils.get_total_norm computes it in one process: those of sharded models
// count as a whole, each once, with one collective per model; others as they are. nullopt where this rank
// holds all of every tensor. Every rank must ask for the same. Outside of forward and backward.
std::optional<at::Tensor> norm_over_ranks(const std::vector<at::Tensor>& tensors, double norm_type,
                                          bool error_if_nonfinite);

}  // namespace osdp::runtime
