// What the runtime is told, as plain values: the plan after Python has matched it with a model's parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "modes.hpp"
#include "ops/slice_source.hpp"

namespace osdp::runtime {

// Names of process groups that only this package uses. `shard` and `replicate` are this rank's line and
// column (see Note [Hybrid sharding]); empty where no unit is HYBRID_SHARD. `reductions` and
// `shard_reductions`: of the same ranks as `all` and `shard`, see Note [A lane for reductions]; empty where
// gathers and reductions share theirs.
struct Groups {
  std::string all;
  std::string shard;
  std::string replicate;
  std::string reductions;
  std::string shard_reductions;
};

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

// One parameter. On entry `tensor` holds the full value, equal on every rank; or, with `full_sizes`, nothing
// yet: it is then given memory for this rank's part, whose contents are for the caller to fill.
struct ParamSpec {
  std::string name;
  at::Tensor tensor;
  std::optional<SplitSpec> split;
  std::optional<std::vector<int64_t>> full_sizes;
  Precision precision;
  bool offload = false;  // with full_sizes: what is sharded rests in host memory, see offload.hpp

  at::IntArrayRef sizes() const { return full_sizes ? at::IntArrayRef(*full_sizes) : tensor.sizes(); }
};

// Parameters (indices) gathered and reduced together. A split parameter is alone in its unit.
struct UnitSpec {
  std::string name;
  Mode mode;
  std::vector<int64_t> params;
};

}  // namespace osdp::runtime
