// Coalesced: issues several collectives as one launch, if the backend supports it (NCCL: one group call, so
// one kernel and one latency; it may reorder the collectives within the group).
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <exception>
#include <utility>

namespace osdp::comm {

// Collectives called on the backend during its lifetime are launched at end(), or by the destructor after an
// exception. With fewer than two collectives, or a backend without coalescing, each is launched when it is
// called.
class Coalesced {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;

  Coalesced(c10d::Backend& backend, size_t count) {
    if (count < 2 || !backend.supportsCoalescing()) return;
    backend.startCoalescing();
    backend_ = &backend;
  }
  Coalesced(const Coalesced&) = delete;
  Coalesced& operator=(const Coalesced&) = delete;
  ~Coalesced() {
    try {
      end();
    } catch (const std::exception&) {  // the exception that led here is already propagating
    }
  }

  // The Work of all of them; null if there is none or if each call returned its own.
  Work end() {
    c10d::Backend* backend = std::exchange(backend_, nullptr);
    return backend ? backend->endCoalescing() : Work();
  }

 private:
  c10d::Backend* backend_ = nullptr;
};

}  // namespace osdp::comm
