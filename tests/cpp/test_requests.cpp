// The fuzzer's property of the planner on what a fuzzer found once, and on random requests, the same ones in
// every run: proper ones, some with one thing wrong, and nonsense.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "../fuzz/planner_property.hpp"
#include "check.hpp"

using namespace osdp::search;

int main(int argc, char** argv) {
  const int requests = argc > 1 ? std::atoi(argv[1]) : 4000;
  const int seed = argc > 2 ? std::atoi(argv[2]) : 5;
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  Answered counted;
  int found = 0;
  for (const auto& file : std::filesystem::directory_iterator(OSDP_FUZZ_FOUND)) {
    std::ifstream bytes(file.path(), std::ios::binary);
    const std::vector<char> input(std::istreambuf_iterator<char>(bytes), {});
    try_request({reinterpret_cast<const uint8_t*>(input.data()), input.size()}, counted);
    ++found;
  }
  CHECK(found > 0);
  for (int n = 0; n < requests; ++n) {
    std::vector<uint8_t> bytes(400);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
    bytes[0] = static_cast<uint8_t>(n);
    if (std::getenv("OSDP_TRACE") != nullptr) std::fprintf(stderr, "request %d\n", n);
    try_request(bytes, counted);
  }
  std::printf("%d requests: %d refused, %d answered, %d of these with a plan\n", requests, counted.refused,
              counted.answered, counted.plans);
  // Enough of each kind that the run means something.
  CHECK(counted.refused > requests / 8);
  CHECK(counted.plans > requests / 8);
  CHECK(counted.answered - counted.plans > requests / 40);
  return report("test_requests");
}
