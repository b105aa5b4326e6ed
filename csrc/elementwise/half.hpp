// bfloat16 and IEEE half: storage types and branch-free conversions, so that loops over them vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace osdp::elementwise {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

inline BFloat16 to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Adds half an ulp minus one, plus one if the kept part is odd, so that ties round to even. A carry into
  // the exponent gives the right result.
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16_t>(nan ? 0x7fc0u : rounded)};
}

// Note [Half by exponent shift]
// Half has 5 exponent bits (bias 15) and 10 of mantissa; float 8 (bias 127) and 23. Normal numbers move
// between them by shifting 13 bits and adding or removing 127 - 15 = 112 in the exponent. Infinity and NaN,
// exponent 31, need another 112 to reach 255. Subnormal halves are multiples of 2^-24: an integer conversion
// (one way), or adding 0.5f, whose ulp is 2^-24 so that the addition itself rounds to nearest even (the other
// way).
inline float to_float(Float16 value) {
  const uint32_t magnitude = value.bits & 0x7fffu;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t special = normal + (112u << 23);
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t finite = magnitude < 0x0400u ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special : finite));
}

inline Float16 to_float16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = ((magnitude + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;  // 2^-14
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;  // NaN : infinity
  const uint32_t half = magnitude >= 0x477ff000u ? special : finite;     // 65520 rounds to infinity
  return {static_cast<uint16_t>(((bits >> 16) & 0x8000u) | half)};
}

// Uniform names for reading and writing any element; C is the type used for computing.
template <class C>
C load(float value) {
  return static_cast<C>(value);
}
template <class C>
C load(double value) {
  return static_cast<C>(value);
}
template <class C>
C load(BFloat16 value) {
  return static_cast<C>(to_float(value));
}
template <class C>
C load(Float16 value) {
  return static_cast<C>(to_float(value));
}

template <class C>
void store(float& where, C value) {
  where = static_cast<float>(value);
}
template <class C>
void store(double& where, C value) {
  where = static_cast<double>(value);
}
template <class C>
void store(BFloat16& where, C value) {
  where = to_bfloat16(static_cast<float>(value));
}
template <class C>
void store(Float16& where, C value) {
  where = to_float16(static_cast<float>(value));
}

}  // namespace osdp::elementwise
