// The call of an nn.Conv1d, 2d or 3d, without groups, for C++ callers: its outputs slice by slice of the
// weight. It has no schema: it is called by modules, which break the graph of torch.compile.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace osdp::ops {

struct Convolution {
  std::vector<int64_t> weight;  // the sizes of the whole weight: [out, in, kernel...]
  std::vector<int64_t> stride, padding, dilation;
};

// x: [N, in, ...] of floating point; returns [N, out, ...]. The slices are of the rows of the weight
// (SplitDim Out), from `source`, which is given their gradients; `weight`, the parameter that is sharded, is
// the input of the autograd node. Under autocast x, the bias and each slice are cast, as by torch's own
// convolution.
at::Tensor split_convolution(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, const Convolution& convolution,
                             int64_t granularity, int64_t source);

}  // namespace osdp::ops
