#include "runtime/store/memory_meter.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>

namespace osdp::runtime {
namespace {

// Never goes below zero: only blocks that this allocator counted are subtracted.
std::atomic<size_t> live_bytes{0};
std::atomic<size_t> peak_bytes{0};

class MeteredAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    if (data) {
      c10::profiledCPUMemoryReporter().New(data, bytes);
      const size_t now = live_bytes.fetch_add(malloc_usable_size(data)) + malloc_usable_size(data);
      size_t peak = peak_bytes.load();
      while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
      }
    }
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void release(void* data) {
    if (!data) return;
    c10::profiledCPUMemoryReporter().Delete(data);
    live_bytes.fetch_sub(malloc_usable_size(data));
    c10::free_cpu(data);
  }
};

}  // namespace

void memory_meter_install() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Lives as long as the process: tensors hold its deleter to the very end.
    static auto* allocator = new MeteredAllocator();
    c10::SetAllocator(c10::DeviceType::CPU, allocator, std::numeric_limits<uint8_t>::max());
  });
}

size_t memory_live_bytes() { return live_bytes; }
size_t memory_peak_bytes() { return peak_bytes; }
void memory_reset_peak() { peak_bytes = live_bytes.load(); }

}  // namespace osdp::runtime
