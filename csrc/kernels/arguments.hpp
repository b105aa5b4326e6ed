// What every kernel checks before it touches memory, and the step from a DType value to a C++ type.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/kernels.hpp"

namespace osdp::kernels {

inline void check_range(const char* kernel, const void* dst, const void* src, int64_t count) {
  if (count < 0) {
    throw std::invalid_argument(std::string("osdp kernel ") + kernel + ": count is " + std::to_string(count) +
                                "; it must not be negative");
  }
  if (count > 0 && (dst == nullptr || src == nullptr)) {
    throw std::invalid_argument(std::string("osdp kernel ") + kernel + ": null pointer for " +
                                std::to_string(count) + " elements");
  }
}

inline void check_columns(const char* kernel, const void* dst, const void* src, int64_t rows, int64_t cols,
                          int64_t ld) {
  if (rows < 0 || cols < 0 || (rows > 1 && ld < cols)) {
    throw std::invalid_argument(std::string("osdp kernel ") + kernel + ": [" + std::to_string(rows) + ", " +
                                std::to_string(cols) + "] with row stride " + std::to_string(ld) +
                                "; sizes must not be negative and rows must not overlap");
  }
  check_range(kernel, dst, src, rows * cols);
}

template <class T>
struct Type {
  using type = T;
};

// Calls f(Type<T>{}) with the T that stands for `dtype` on this device.
template <class F32, class F64, class BF16, class F16, class F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::Float32:
      return f(Type<F32>{});
    case DType::Float64:
      return f(Type<F64>{});
    case DType::BFloat16:
      return f(Type<BF16>{});
    case DType::Float16:
      return f(Type<F16>{});
  }
  throw std::invalid_argument("osdp kernel: unknown dtype " + std::to_string(static_cast<int32_t>(dtype)));
}

}  // namespace osdp::kernels
