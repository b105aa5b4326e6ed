// The shape of a split matrix product, and how its weight is sliced.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>

#include "ops/slice_source.hpp"

namespace osdp::ops {

// y[N, out] = x[N, in] W^T with W in `granularity` equal slices along `split`.
struct SplitShape {
  int64_t out_features;
  int64_t in_features;
  int64_t granularity;
  SplitDim split;

  // Throws c10::Error naming the invalid argument.
  SplitShape(int64_t out_features, int64_t in_features, int64_t granularity, int64_t split)
      : out_features(out_features),
        in_features(in_features),
        granularity(granularity),
        split(SplitDim{split}) {
    TORCH_CHECK_VALUE(out_features >= 0 && in_features >= 0, "osdp: negative size: out_features ",
                      out_features, ", in_features ", in_features);
    TORCH_CHECK_VALUE(split == 0 || split == 1, "osdp: split is ", split, "; 0 is out, 1 is in");
    TORCH_CHECK_VALUE(granularity >= 1, "osdp: granularity is ", granularity, "; it must be at least 1");
    TORCH_CHECK_VALUE(divided() % granularity == 0, "osdp: granularity ", granularity, " does not divide ",
                      by_out() ? "out_features " : "in_features ", divided());
  }

  bool by_out() const { return split == SplitDim::Out; }
  int64_t divided() const { return by_out() ? out_features : in_features; }
  int64_t width() const { return divided() / granularity; }  // of one slice, along the split dimension
  int64_t slice_rows() const { return by_out() ? width() : out_features; }
  int64_t slice_cols() const { return by_out() ? in_features : width(); }
  int64_t packed_rows() const { return slice_rows() * granularity; }  // all slices, stacked along dimension 0
};

}  // namespace osdp::ops
