// The norm of tensors, some of which are sharded, as one process would compute it. Used by torch's own norm
// functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace osdp::runtime {

class Runtime;

// A model, and the model around it that is sharded over more ranks.
using PartOfWhole = std::pair<std::shared_ptr<Runtime>, std::shared_ptr<Runtime>>;

// The norm of `tensors`, as torch.nn.utils.get_total_norm computes it in one process. A tensor of a sharded
// model counts in full and once, with one collective per model; other tensors count as they are. Returns
// nullopt if this rank holds every tensor in full. A tensor of one of `parts` counts once per group of ranks
// that the part is sharded over, in the collective of the model around it: see Note [Norm of a mixed plan].
// Every rank must call it with the same arguments, outside of forward and backward.
std::optional<at::Tensor> norm_over_ranks(const std::vector<at::Tensor>& tensors, double norm_type,
                                          bool error_if_nonfinite, const std::vector<PartOfWhole>& parts);

}  // namespace osdp::runtime
