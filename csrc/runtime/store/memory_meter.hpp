// Counts every live byte of CPU tensor memory, whichever thread allocates or frees it (torch's own allocation
// events are thread-local). It replaces torch's CPU allocator with a counting one, so memory allocated before
// is not counted.
#pragma once

#include <cstddef>

namespace osdp::runtime {

void memory_meter_install();  // once; later calls do nothing
size_t memory_live_bytes();   // 0 before it is installed
size_t memory_peak_bytes();   // maximum since the last reset
void memory_reset_peak();

}  // namespace osdp::runtime
