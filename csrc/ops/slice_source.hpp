// SliceSource: what a split matrix product needs from whoever holds the weight.
//
// A weight of `granularity` equal slices, along the output dimension (rows: slice i is [out/g, in]) or along
// the input dimension (columns: slice i is [out, in/g], contiguous). The product asks for one slice at a time
// and never sees the whole. The runtime implements this over shards and collectives; tests implement it over
// a plain tensor.
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
  // slice that will be asked for after this one: a source may begin to fetch it. Collective where the slice
  // is sharded.
  virtual at::Tensor acquire(int64_t index, int64_t next) = 0;

  // The caller no longer reads slice `index`. Every acquire is matched by one release, also after an
  // exception.
  virtual void release(int64_t index) noexcept = 0;

  // Takes over the full local gradient of slice `index` (its shape, in the dtype that was computed in; not
  // averaged). The source reduces it; the gradient reaches the parameter's .grad by the end of this backward.
  // May be called several times per backward.
  virtual void put_grad(int64_t index, at::Tensor grad) = 0;

  // Of the weight, for errors.
  virtual std::string name() const { return "weight"; }
};

// The op's schema carries integers, not objects: sources are registered under an id (never 0, never reused).
int64_t register_source(std::shared_ptr<SliceSource> source);
void unregister_source(int64_t id);
// Throws c10::Error naming the id when it is not registered.
std::shared_ptr<SliceSource> find_source(int64_t id);

}  // namespace osdp::ops
