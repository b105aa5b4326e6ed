// The norm of tensors of which each rank holds a part: gradients, or parameters, of sharded models.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/collectives.hpp"
#include "comm/lane.hpp"
#include "faults/task_name.hpp"

namespace osdp::runtime {

// What a norm of order p is made of: the sum of the p-th powers, or the maximum where p is infinite. It is
// computed where the gradients are and never read by the host, which on an accelerator would wait for the
// device.
class NormTerms {
 public:
  // `device`: where the terms are brought together.
  NormTerms(double norm_type, at::Device device);

  void add(const std::vector<at::Tensor>& tensors);
  void add(const NormTerms& other);
  // Over all ranks of the lane.
  void reduce(Lane& lane, const TaskNamePtr& name, const std::shared_ptr<Collectives>& collectives);
  at::Tensor norm(at::ScalarType dtype) const;  // one number

 private:
  bool largest() const;
  at::Tensor merged(const at::Tensor& terms) const;
  at::Tensor total() const;

  double norm_type_;
  at::Device device_;
  std::vector<at::Tensor> terms_;  // one double each
};

// Throws GradientError, which every rank then does, where the norm is not finite. The host waits for it.
void check_finite(const at::Tensor& norm, double norm_type);

// Scales the gradients to max_norm where their norm, one number, is larger; also where it is not a number:
// every rank then has the same NaN, as one process would.
void scale_to(double max_norm, const at::Tensor& norm, const std::vector<at::Tensor>& gradients);

}  // namespace osdp::runtime
