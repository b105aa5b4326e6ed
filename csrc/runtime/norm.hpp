// The norm of tensors of which each rank holds a part: gradients, or parameters, of sharded models.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "runtime/collectives.hpp"
#include "runtime/lane.hpp"
#include "runtime/task_name.hpp"

namespace osdp::runtime {

// What a norm of order p is made of: the sum of the p-th powers, or the maximum where p is infinite. Whether
// it is not a number is kept beside it: a maximum may or may not be one when one of its terms is.
class NormTerms {
 public:
  explicit NormTerms(double norm_type);

  void add(const std::vector<at::Tensor>& tensors);
  void add(const NormTerms& other);
  // Over all ranks of the lane. One collective of two numbers.
  void reduce(Lane& lane, const TaskNamePtr& name, const std::shared_ptr<Collectives>& collectives,
              at::Device device);
  double norm() const;

 private:
  double norm_type_;
  double sum_ = 0;
  bool not_a_number_ = false;
};

// Throws GradientError, which every rank then does, where the norm is not finite and that is an error.
void check_norm(double norm, double norm_type, bool error_if_nonfinite);

// The norm of `tensors`, as torch.nn.utils.get_total_norm computes it in one process: those of sharded models
// count as a whole, each once, with one collective per model; others as they are. nullopt where this rank
// holds all of every tensor. Every rank must ask for the same. Outside of forward and backward.
std::optional<at::Tensor> norm_over_ranks(const std::vector<at::Tensor>& tensors, double norm_type,
                                          bool error_if_nonfinite);

}  // namespace osdp::runtime
