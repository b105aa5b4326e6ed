// Access to one slice of the weight at a time, from a tensor that holds all slices or from a SliceSource.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>

#include "ops/slice_source.hpp"
#include "ops/split_shape.hpp"

namespace osdp::ops {

// A slice that is readable as long as this object lives, and is released by the destructor, also after an
// exception.
class AcquiredSlice {
 public:
  AcquiredSlice(SliceSource* source, int64_t index, at::Tensor tensor)
      : source_(source), index_(index), tensor_(std::move(tensor)) {}
  AcquiredSlice(AcquiredSlice&& other) noexcept
      : source_(std::exchange(other.source_, nullptr)),
        index_(other.index_),
        tensor_(std::move(other.tensor_)) {}
  AcquiredSlice& operator=(AcquiredSlice&&) = delete;
  ~AcquiredSlice() {
    tensor_.reset();  // the source may check that nothing else holds it
    if (source_ != nullptr) source_->release(index_);
  }
  const at::Tensor& tensor() const { return tensor_; }

 private:
  SliceSource* source_;
  int64_t index_;
  at::Tensor tensor_;
};

class WeightSlices {
 public:
  // source == 0: `weight` is [packed_rows, slice_cols] and holds every slice; else `weight` is ignored.
  WeightSlices(const SplitShape& shape, const std::optional<at::Tensor>& weight, int64_t source);

  // Slice `index` in dtype `compute` (null: its own): the slice itself, or a copy if it is kept in another
  // dtype (the original is then released at once). `next` as in SliceSource::acquire. Throws c10::Error if
  // the source returns a wrong shape or device or an unsuitable dtype.
  AcquiredSlice acquire(int64_t index, int64_t next, std::optional<at::ScalarType> compute,
                        const at::Device& device) const;

  SliceSource* source() const { return source_.get(); }  // null if a tensor holds the slices

 private:
  SplitShape shape_;
  at::Tensor weight_;
  std::shared_ptr<SliceSource> source_;
};

}  // namespace osdp::ops
