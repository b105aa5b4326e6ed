// Coalesced: several collectives as one launch, where the backend can (NCCL: one group call, so one kernel
// and one latency; it may reorder what is inside).
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <exception>
#include <utility>

namespace osdp::runtime {

// Collectives called on the backend while this exists are launched at end(), or, where it is left by an
// exception, when it is destroyed. With fewer than two, or a backend that cannot, each is launched as it is
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
    } catch (const std::exception&) {  // the one that led here is on its way
    }
  }

  // Of all of them; null where there is none, or the calls gave theirs.
  Work end() {
    c10d::Backend* backend = std::exchange(backend_, nullptr);
    return backend ? backend->endCoalescing() : Work();
  }

 private:
  c10d::Backend* backend_ = nullptr;
};

}  // namespace osdp::runtime
