// SliceSource: the interface through which a split matrix product, or look-up, gets the slices of a weight.
//
// A weight of `granularity` slices (split_shape.hpp), along the output dimension (rows: slice i is [out/g,
// in]) or along the input dimension (columns: slice i is [out, in/g], contiguous). The product acquires one
// slice at a time and never sees the whole weight. The runtime implements this with shards and collectives;
// tests implement it with a plain tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace osdp::ops {

enum class SplitDim : int64_t { Out = 0, In = 1 };

class SliceSource {
 public:
  virtual ~SliceSource() = default;

  // Slice `index`, contiguous, readable on the current stream until release(index). `next` (or -1) is the
  // slice that will be acquired after this one, which a source may prefetch. Collective if the slice is
  // sharded.
  virtual at::Tensor acquire(int64_t index, int64_t next) = 0;

  // The caller no longer reads slice `index`. Every acquire is matched by one release, also after an
  // exception.
  virtual void release(int64_t index) noexcept = 0;

  // Takes ownership of the full local gradient of slice `index` (of the slice's shape, in the compute dtype,
  // not averaged). The source reduces it; the gradient reaches the parameter's .grad by the end of this
  // backward. May be called several times per backward.
  virtual void put_grad(int64_t index, at::Tensor grad) = 0;

  // The weight's name, for errors.
  virtual std::string name() const { return "weight"; }
};

// The op's schema carries integers, not objects: sources are registered under an id (never 0, never reused).
int64_t register_source(std::shared_ptr<SliceSource> source);
void unregister_source(int64_t id);
// Throws c10::Error, naming the id, if it is not registered.
std::shared_ptr<SliceSource> find_source(int64_t id);

}  // namespace osdp::ops
