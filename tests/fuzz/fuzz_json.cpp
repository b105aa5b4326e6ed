// libFuzzer's entry: `make fuzz`.
#include "json_property.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  osdp::json::read_anything({reinterpret_cast<const char*>(data), size});
  return 0;
}
