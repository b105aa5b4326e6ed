#include "ops/weight_slices.hpp"

#include <ATen/ATen.h>

namespace osdp::ops {

WeightSlices::WeightSlices(const SplitShape& shape, const std::optional<at::Tensor>& weight, int64_t source)
    : shape_(shape) {
  if (source != 0) {
    source_ = find_source(source);
    return;
  }
  TORCH_CHECK(weight.has_value() && weight->defined(), "osdp: needs a weight or a slice source");
  TORCH_CHECK(
      weight->dim() == 2 && weight->size(0) == shape.packed_rows() && weight->size(1) == shape.slice_cols(),
      "osdp: weight is ", weight->sizes(), "; its ", shape.granularity, " slices, one below the other, are [",
      shape.packed_rows(), ", ", shape.slice_cols(), "]");
  weight_ = *weight;
}

namespace {

// A slice may be kept in a wider dtype than the compute dtype (autocast, mixed precision); any other
// difference is an error, as for nn.Linear.
void check_slice(const SplitShape& shape, const at::Tensor& slice, int64_t index, at::ScalarType compute,
                 const at::Device& device) {
  TORCH_CHECK(slice.defined() && slice.dim() >= 2 && slice.size(0) == shape.slice_rows(index) &&
                  slice.numel() == shape.slice_rows(index) * shape.slice_cols(),
              "osdp: slice ", index, " has shape ", slice.defined() ? slice.sizes() : at::IntArrayRef{},
              "; expected [", shape.slice_rows(index), ", ", shape.slice_cols(), "]");
  TORCH_CHECK(slice.device() == device, "osdp: slice ", index, " is on ", slice.device(),
              ", its operand is on ", device);
  const bool same = slice.scalar_type() == compute;
  const bool narrowed =
      slice.scalar_type() == at::kFloat && (compute == at::kBFloat16 || compute == at::kHalf);
  TORCH_CHECK(same || narrowed, "osdp: x is ", compute, " but the weight is ", slice.scalar_type());
}

}  // namespace

AcquiredSlice WeightSlices::acquire(int64_t index, int64_t next, std::optional<at::ScalarType> compute_in,
                                    const at::Device& device) const {
  at::Tensor slice = source_ ? source_->acquire(index, next)
                             : weight_.narrow(0, shape_.packed_begin(index), shape_.slice_rows(index));
  AcquiredSlice held(source_.get(), index, std::move(slice));
  const at::ScalarType compute = compute_in.value_or(held.tensor().scalar_type());
  check_slice(shape_, held.tensor(), index, compute, device);
  if (held.tensor().scalar_type() == compute) return held;
  return AcquiredSlice(nullptr, index, held.tensor().to(compute));  // `held` is released here
}

}  // namespace osdp::ops
