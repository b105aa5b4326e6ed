// The norm of tensors, some of which are sharded, as one process would compute it. Used by torch's own norm
// functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace osdp::runtime {

// The norm of `tensors`, as torch.nn.utils.get_total_norm computes it in one process. A tensor of a sharded
// model counts in full and once, with one collective per model; other tensors count as they are. Returns
// nullopt if this rank holds every tensor in full. Every rank must call it with the same arguments, outside
// of forward and backward.
std::optional<at::Tensor> norm_over_ranks(const std::vector<at::Tensor>& tensors, double norm_type,
                                          bool error_if_nonfinite);

}  // namespace osdp::runtime
