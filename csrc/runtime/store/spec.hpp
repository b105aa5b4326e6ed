// The runtime's input as plain values: the plan, after Python has matched it with a model's parameters.
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
// column (see Note [Hybrid sharding]); empty if no unit's mode needs them. `reductions` and
// `shard_reductions` have the same ranks as `all` and `shard`, see Note [A lane for reductions]; empty if
// gathers and reductions share their groups. `between` has the ranks of `replicate`, for gathers between
// hosts (Note [Between hosts, then inside] in comm/two_level.hpp), which run on another lane; empty if there
// are none.
struct Groups {
  std::string all;
  std::string shard;
  std::string replicate;
  std::string reductions;
  std::string shard_reductions;
  std::string between;
};

// A matrix that is divided into `granularity` slices: of its rows (Out), which differ by one row at most
// (slice_begin in modes.hpp), or of its columns (In), which are equal: rows of the local tensor are as long
// as those of a slice. A weight [in, out] is split along its inputs by Out; a convolution's, [out, in, ...],
// by Out alone. The last `sharded` slices are sharded over the ranks; every rank keeps the others in full.
// 0 <= sharded <= granularity.
struct SplitSpec {
  int64_t granularity;
  int64_t sharded;
  ops::SplitDim dim;

  int64_t whole_slices() const { return granularity - sharded; }
};

// The dtypes in which a parameter is computed with and its gradient averaged: see precision.hpp.
struct Precision {
  std::optional<at::ScalarType> compute;  // empty: its own dtype
  std::optional<at::ScalarType> reduce;   // empty: the compute dtype
};

// One parameter. On entry `tensor` holds the full value, equal on every rank. With `full_sizes` it holds no
// value yet: it gets `local`, this rank's part, if that is defined; otherwise memory for the part is
// allocated, and the caller fills it.
struct ParamSpec {
  std::string name;
  at::Tensor tensor;
  std::optional<SplitSpec> split;
  std::optional<std::vector<int64_t>> full_sizes;
  Precision precision;
  bool offload = false;  // with full_sizes: the sharded part rests in host memory, see offload.hpp
  at::Tensor local = {};

  at::IntArrayRef sizes() const { return full_sizes ? at::IntArrayRef(*full_sizes) : tensor.sizes(); }
};

// Parameters (by index) that are gathered and reduced together. A split parameter is alone in its unit.
struct UnitSpec {
  std::string name;
  Mode mode;
  std::vector<int64_t> params;
};

}  // namespace osdp::runtime
