// libFuzzer's entry: `make fuzz`.
#include "planner_property.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  osdp::search::Answered counted;
  osdp::search::try_request({data, size}, counted);
  return 0;
}
