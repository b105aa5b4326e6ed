// The schemas of osdp's operators. Kernels: split_linear.cpp; autograd and autocast:
// split_linear_autograd.cpp; shapes for FakeTensor, meta tensors and compile (dynamic sizes included):
// osdp/sharding/split_linear.py.
//
// `out_features` and `in_features` are arguments because `weight` may be a shard, which does not determine
// them. `split`: 0 slices the output dimension, 1 the input dimension. `source`: an id of register_source, or
// 0.
#include <torch/library.h>

TORCH_LIBRARY(osdp, m) {
  m.set_python_module("osdp.sharding.split_linear");
  m.def(
      "split_linear(Tensor x, Tensor weight, Tensor? bias, int out_features, int in_features, int "
      "granularity, "
      "int split, int source) -> Tensor");
  m.def(
      "split_linear_backward(Tensor grad, Tensor? x, Tensor? weight, int out_features, int in_features, "
      "int granularity, int split, int source, ScalarType weight_dtype, bool[3] output_mask) "
      "-> (Tensor, Tensor, Tensor)");
}
