// Copies, casts, sums and scalings of the tensors of a unit or bucket, executed on the lane.
//
// Note [Many small tensors]
// A unit has a dozen small tensors, and each is cast, padded, copied, added to and scaled. On the CPU each
// operation runs immediately as a loop on this thread (csrc/elementwise), so that memory can be released
// tensor by tensor. torch's own operators would start a second thread pool on this thread and compete with
// the compute threads. On an accelerator a launch takes longer than the work. There the operations are
// collected, and run() executes all of them in a few launches (ATen's foreach operators, each of which takes
// tensors of one dtype).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace osdp::comm {

// Independent operations on tensors of one device. Both tensors of a pair have the same number of elements;
// if their shapes differ, the one that is written must be contiguous.
class Batch {
 public:
  // to = from * factor. Rounded to `to`'s dtype after the copy, and again after the scaling if the factor is
  // not 1. If `to` is on an accelerator, `from` may be in host memory with `to`'s dtype.
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

}  // namespace osdp::comm
