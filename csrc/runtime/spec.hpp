// What the runtime is told, as plain values: the plan after Python has matched it with a model's parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/slice_source.hpp"

namespace osdp::runtime {

enum class Mode : int64_t { NoShard = 0, ShardGradOp = 1, FullShard = 2 };

// A Linear weight [out, in] of `granularity` equal slices, the last `sharded` of them sharded over the ranks
// and the first ones kept in full on each. 0 <= sharded <= granularity; granularity divides the dimension
// that is split.
struct SplitSpec {
  int64_t granularity;
  int64_t sharded;
  ops::SplitDim dim;
};

// What a parameter is computed in, and its gradient averaged in: see precision.hpp.
struct Precision {
  std::optional<at::ScalarType> compute;  // empty: its own dtype
  std::optional<at::ScalarType> reduce;   // empty: the one it is computed in
};

// One parameter. On entry `tensor` holds the full value, equal on every rank.
struct ParamSpec {
  std::string name;
  at::Tensor tensor;
  std::optional<SplitSpec> split;
  Precision precision;
};

// Parameters (indices) gathered and reduced together. A split parameter is alone in its unit.
struct UnitSpec {
  std::string name;
  Mode mode;
  std::vector<int64_t> params;
};

}  // namespace osdp::runtime
