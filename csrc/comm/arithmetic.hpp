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

// `all` [chunks, sum of the widths]: row r has chunk r of each tensor, one behind the other. A tensor is
// taken as rows, of which a chunk has tensors[i].size(0) / chunks, rounded up; zeros for those that are
// missing. Cast to `all`'s dtype. Together is what small tensors are for: they are a copy each on the CPU.
void join_chunks(const at::Tensor& all, const std::vector<at::Tensor>& tensors);

// The way back: columns[i] [chunks, width of i], contiguous.
void split_columns(const std::vector<at::Tensor>& columns, const at::Tensor& all);

}  // namespace osdp::runtime
