// The few collectives the runtime uses, over one c10d process group, blocking until the result can be used on
// the current stream. Called from the lane only. With one rank they copy or do nothing. Costs, N ranks, S
// bytes of full tensor (ring): all_gather and reduce_scatter (N-1)(alpha + S/N beta), all_reduce twice that.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>
#include <vector>

namespace osdp::runtime {

class Collectives {
 public:
  // `group` is a name known to c10d's registry: process groups cross from Python by name, since another
  // pybind11's classes do not mix with torch's.
  Collectives(const std::string& group, at::Device device);
  ~Collectives();

  int64_t rank() const { return rank_; }
  int64_t world() const { return world_; }

  // outputs[i] (flat, world * n_i elements) is filled with every rank's inputs[i] (flat, n_i), in rank order.
  // All in flight together.
  void all_gather(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs);
  // outputs[i] (flat, n_i) becomes the mean over the ranks of this rank's chunk of inputs[i] (flat, world *
  // n_i).
  void reduce_scatter_mean(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs);
  // In place, contiguous.
  void all_reduce_mean(const std::vector<at::Tensor>& tensors);
  void all_reduce_sum(const at::Tensor& tensor);
  void all_reduce_max(const at::Tensor& tensor);

 private:
  void all_reduce(const std::vector<at::Tensor>& tensors, c10d::ReduceOp::RedOpType operation);

  c10::intrusive_ptr<c10d::Backend> backend_;
  int64_t rank_;
  int64_t world_;
};

}  // namespace osdp::runtime
