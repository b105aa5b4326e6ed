// BackendMemory: memory allocated by a process group's backend.
//
// Note [Memory of the backend]
// A backend may send from and receive into memory that it allocated without an internal copy: NCCL's is
// registered with the communicator (ncclMemAlloc), so that a switch can read and sum it. On request
// (fully_shard(allocate_memory_from_process_group_for_comm=True)) the buffers of gathers and reductions are
// allocated there; a gradient that autograd allocated elsewhere is copied there first. The computing stream
// makes this copy. The lane's stream would have to keep both tensors; this way no more full-size tensors
// exist than without the option. Such a pool is stream-ordered too: Note [Memory that two streams use]
// applies to it. Only sums are reduced without a copy, so means are computed as sums that are divided
// afterwards (Note [Averages in half]). With HYBRID_SHARD the pool is that of the line's group.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstddef>
#include <memory>
#include <utility>

namespace osdp::comm {

class BackendMemory {
 public:
  // The ranks must have communicated: NCCL registers its pool with the communicator.
  explicit BackendMemory(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  static bool there_is(c10d::Backend& backend, c10::Device device) {
    return !device.is_cpu() && backend.supportsTensorAlloc(device.index());
  }

  // Allocated on the current stream. Flat.
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

}  // namespace osdp::comm
