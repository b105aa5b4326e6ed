// The schemas of osdp's operators. Kernels: split_linear.cpp, split_embedding.cpp; autograd and autocast:
// split_linear_autograd.cpp, split_embedding_autograd.cpp; shapes for FakeTensor, meta tensors and compile
// (dynamic sizes included): osdp/sharding/split_linear.py, split_embedding.py.
//
// `out_features` and `in_features`, or `rows` and `columns`, are arguments because `weight` may be a shard,
// which does not determine them. `split`: 0 slices the output dimension (rows), 1 the input dimension
// (columns); a `transposed` weight is [in, out]. `source`: an id of register_source, or 0.
#include <torch/library.h>

TORCH_LIBRARY(osdp, m) {
  m.set_python_module("osdp.sharding.split_linear");
  m.def(
      "split_linear(Tensor x, Tensor weight, Tensor? bias, int out_features, int in_features, int "
      "granularity, int split, bool transposed, int source) -> Tensor");
  m.def(
      "split_linear_backward(Tensor grad, Tensor? x, Tensor? weight, int out_features, int in_features, "
      "int granularity, int split, bool transposed, int source, ScalarType weight_dtype, bool[3] "
      "output_mask) "
      "-> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_FRAGMENT(osdp, m) {
  m.set_python_module("osdp.sharding.split_embedding");
  m.def(
      "split_embedding(Tensor indices, Tensor weight, int rows, int columns, int padding_idx, int "
      "granularity, int split, int source) -> Tensor");
  m.def(
      "split_embedding_backward(Tensor grad, Tensor indices, int rows, int columns, int padding_idx, int "
      "granularity, int split, int source, ScalarType weight_dtype) -> Tensor");
}
