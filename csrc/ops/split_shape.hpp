// The shape of a split matrix product, and how its weight is sliced.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>

#include "modes.hpp"
#include "ops/slice_source.hpp"

namespace osdp::ops {

// y[N, out] = x[N, in] W^T with W in `granularity` slices along `split`. W is stored as [out, in], or as
// [in, out] (`transposed`, as transformers' Conv1D does). Slices of its rows differ by one row at most
// (slice_begin in modes.hpp); those of its columns are equal, since they are packed one below the other.
struct SplitShape {
  int64_t out_features;
  int64_t in_features;
  int64_t granularity;
  SplitDim split;
  bool transposed;

  // Throws c10::Error naming the invalid argument.
  SplitShape(int64_t out_features, int64_t in_features, int64_t granularity, int64_t split,
             bool transposed = false)
      : out_features(out_features),
        in_features(in_features),
        granularity(granularity),
        split(SplitDim{split}),
        transposed(transposed) {
    TORCH_CHECK_VALUE(out_features >= 0 && in_features >= 0, "osdp: negative size: out_features ",
                      out_features, ", in_features ", in_features);
    TORCH_CHECK_VALUE(split == 0 || split == 1, "osdp: split is ", split, "; 0 is out, 1 is in");
    TORCH_CHECK_VALUE(granularity >= 1, "osdp: granularity is ", granularity, "; it must be at least 1");
    const char* const what = by_out() ? "out_features " : "in_features ";
    TORCH_CHECK_VALUE(slices_fit(divided(), granularity, by_rows()), "osdp: granularity ", granularity,
                      by_rows() ? " is more than " : " does not divide ", what, divided());
  }

  bool by_out() const { return split == SplitDim::Out; }
  int64_t divided() const { return by_out() ? out_features : in_features; }
  bool by_rows() const { return by_out() != transposed; }  // of the weight as it is stored
  int64_t rows() const { return transposed ? in_features : out_features; }
  int64_t cols() const { return transposed ? out_features : in_features; }
  // Of slice i: where it begins along the dimension that is split, and how long it is there.
  int64_t begin(int64_t i) const { return slice_begin(divided(), granularity, i); }
  int64_t width(int64_t i) const { return begin(i + 1) - begin(i); }
  int64_t slice_rows(int64_t i) const { return by_rows() ? width(i) : rows(); }
  int64_t slice_cols() const { return by_rows() ? cols() : width(0); }
  // All slices, stacked along dimension 0, and where slice i begins there.
  int64_t packed_rows() const { return by_rows() ? rows() : rows() * granularity; }
  int64_t packed_begin(int64_t i) const { return by_rows() ? begin(i) : rows() * i; }
};

}  // namespace osdp::ops
