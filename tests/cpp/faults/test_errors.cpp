// What other ranks are told of an exception: torch's words without its stack trace.
#include "../check.hpp"
#include "faults/errors.hpp"

namespace faults = osdp::faults;

int main() {
  CHECK_EQ(faults::without_backtrace("a word\nand another"), "a word\nand another");
  CHECK_EQ(faults::without_backtrace(""), "");
  CHECK_EQ(faults::without_backtrace("no memory (12)\nframe #0: c10::alloc_cpu + 0x3a4"), "no memory (12)");
  CHECK_EQ(faults::without_backtrace("shapes differ\nException raised from check at a.cpp:1\nframe #0: f"),
           "shapes differ");
  return report("errors");
}
