// Copies, casts, sums and scalings of the tensors of a unit or bucket, computed on the lane.
//
// Note [Many small tensors]
// A unit has a dozen small tensors, and each is cast, padded, copied, added to and scaled. On the CPU a
// loop on this thread (csrc/elementwise) is run for each, at once, so that memory can be let go of tensor
// by tensor: the compute threads must be left alone, and torch's own operators would open a pool of threads
// beside theirs. On an accelerator a launch takes longer than the work. There they are collected, and run()
// takes a few launches for all of them (ATen's foreach operators, of which each takes tensors of one dtype).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "elementwise/elementwise.hpp"

namespace osdp::runtime {

// What csrc/elementwise calls a dtype; empty for those that it does not know.
std::optional<elementwise::DType> elementwise_dtype(at::ScalarType dtype);

// Operations that do not depend on each other, of tensors of one device. Each pair is of one number of
// elements, and the tensor that is written contiguous where the shapes differ.
class Batch {
 public:
  // to = from * factor, rounded to `to`'s dtype, and so again where the factor is not 1. On an accelerator
  // `from` may be in host memory, of `to`'s dtype.
  void set(at::Tensor to, const at::Tensor& from, double factor = 1.0);
  // sum += addend * factor.
  void add(at::Tensor sum, const at::Tensor& addend, double factor = 1.0);
  void scale(at::Tensor tensor, double factor);
  void zero(at::Tensor tensor);

  void run();

 private:
  struct Operation {
    at::Tensor to, from;
    double factor;
  };
  std::vector<Operation> sets_, sums_, scalings_;
  std::vector<at::Tensor> zeros_;
};

}  // namespace osdp::runtime
