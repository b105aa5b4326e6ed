// The norm of distributed tensors: gradients or parameters of sharded models.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/collectives.hpp"
#include "comm/lane.hpp"
#include "faults/task_name.hpp"

namespace osdp::runtime {

// The partial results of a norm of order p: the sum of the p-th powers, or the maximum if p is infinite.
// Computed on the gradients' device and never read by the host, which would synchronize with the accelerator.
class NormTerms {
 public:
  // `device`: where the terms are combined.
  NormTerms(double norm_type, at::Device device);

  void add(const std::vector<at::Tensor>& tensors);
  void add(const NormTerms& other);
  // Over all ranks of the lane.
  void reduce(comm::Lane& lane, const faults::TaskNamePtr& name,
              const std::shared_ptr<comm::Collectives>& collectives);
  at::Tensor norm(at::ScalarType dtype) const;  // one number

 private:
  bool largest() const;
  at::Tensor merged(const at::Tensor& terms) const;
  at::Tensor total() const;

  double norm_type_;
  at::Device device_;
  std::vector<at::Tensor> terms_;  // one double each
};

// Throws GradientError if the norm is not finite; the norm is equal on all ranks, so every rank throws. The
// host waits for the norm.
void check_finite(const at::Tensor& norm, double norm_type);

// Scales the gradients down to max_norm if their norm (a scalar tensor) is larger. A NaN norm makes all
// gradients NaN, as in one process.
void scale_to(double max_norm, const at::Tensor& norm, const std::vector<at::Tensor>& gradients);

}  // namespace osdp::runtime
