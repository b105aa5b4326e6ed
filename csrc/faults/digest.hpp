// Digest: a 64-bit hash of what ranks must agree on, the same with every compiler and on every machine.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace osdp::faults {

// Depends on the order in which words are added.
class Digest {
 public:
  Digest() = default;
  explicit Digest(uint64_t so_far) : sum_(so_far) {}

  Digest& add(uint64_t word) {
    sum_ = mixed(sum_ ^ word);
    return *this;
  }
  Digest& add(double value) { return add(std::bit_cast<uint64_t>(value)); }
  Digest& add(std::string_view text) {
    add(uint64_t{text.size()});
    for (const char c : text) add(uint64_t{static_cast<unsigned char>(c)});
    return *this;
  }
  uint64_t value() const { return sum_; }

 private:
  // A step of splitmix64: a bijection in which every bit of x affects every bit of the result.
  static constexpr uint64_t mixed(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
  }
  uint64_t sum_ = 0;
};

}  // namespace osdp::faults
