// BackendMemory: memory of a process group's backend.
//
// Note [Memory of the backend]
// A backend may send from and receive into memory of its own without copies of its own: NCCL's is registered
// with the communicator (ncclMemAlloc), so that a switch can read it, and sum. If asked to
// (fully_shard(allocate_memory_from_process_group_for_comm=True)), what is gathered is allocated there, and
// what is reduced: a gradient that autograd has made elsewhere is copied there first. The stream that made it
// copies it, not the lane's, which would keep both: so no more full-size tensors exist than without. Such a
// pool too knows streams: Note [Memory that two streams use] holds for it. Only sums are reduced without a
// copy, so means are sums that are divided then (Note [Averages in half]). With HYBRID_SHARD the pool is that
// of the line.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstddef>
#include <memory>
#include <utility>

namespace osdp::runtime {

class BackendMemory {
 public:
  // The ranks must have communicated: NCCL registers its pool with the communicator.
  explicit BackendMemory(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  static bool there_is(c10d::Backend& backend, c10::Device device) {
    return !device.is_cpu() && backend.supportsTensorAlloc(device.index());
  }

  // Of the current stream. Flat.
  at::Tensor empty(int64_t elements, const at::TensorOptions& options) const {
    return backend_->allocateTensor(static_cast<long>(elements), options);
  }

  c10::DataPtr allocate(size_t bytes, c10::Device device) const {
    auto owned = std::make_unique<at::Tensor>(
        empty(static_cast<int64_t>(bytes), at::TensorOptions(device).dtype(at::kByte)));
    void* const data = owned->mutable_data_ptr();
    return {data, owned.release(), [](void* tensor) { delete static_cast<at::Tensor*>(tensor); }, device};
  }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace osdp::runtime
