// The few element-wise kernels of the sharded store: cast, pack, unpack, accumulate, scale, zero.
//
// Plain pointers and element counts; no torch, so that they compile in seconds and can be called from any
// thread. Every function exists as cpu::f and cuda::f with one signature, and as f(device, ...), which picks
// one of them. CPU kernels are single-threaded loops that the compiler vectorises (a communication thread
// runs them beside the compute threads; a caller with threads to spare divides the range). CUDA kernels are
// launched on `stream` (a cudaStream_t; null is the legacy default stream) and return at once; the CPU
// ignores `stream`.
//
// Ranges must not overlap, counts may be 0, negative counts and null pointers with a positive count are
// refused (std::invalid_argument). CUDA launch failures, and f(Device::CUDA, ...) of a build without CUDA,
// are std::runtime_error.
#pragma once

#include <cstdint>

namespace osdp::kernels {

enum class DType : int32_t { Float32 = 0, Float64 = 1, BFloat16 = 2, Float16 = 3 };
enum class Device : int32_t { CPU = 0, CUDA = 1 };

constexpr int64_t element_bytes(DType dtype) {
  return dtype == DType::Float64 ? 8 : dtype == DType::Float32 ? 4 : 2;
}

bool built_with_cuda();

// dst[i] = src[i], rounded to nearest even; any pair of types (to 16 bits by way of float, as torch does).
void cast(Device device, void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count,
          void* stream = nullptr);

// dst, contiguous [rows, cols] = a column range: src points at its first element, row r at src + r * ld.
void pack(Device device, void* dst, const void* src, int64_t rows, int64_t cols, int64_t ld, DType dtype,
          void* stream = nullptr);

// The way back: dst points at the first element of the column range, row r at dst + r * ld; src is
// contiguous.
void unpack(Device device, void* dst, const void* src, int64_t rows, int64_t cols, int64_t ld, DType dtype,
            void* stream = nullptr);

// dst[i] += scale * src[i], computed in double where either type is double, else in float; stored rounded.
void accumulate(Device device, void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count,
                double scale, void* stream = nullptr);

// dst[i] *= factor, computed in double for double, else in float.
void scale(Device device, void* dst, DType dtype, int64_t count, double factor, void* stream = nullptr);

// dst[i] = 0.
void zero(Device device, void* dst, DType dtype, int64_t count, void* stream = nullptr);

#define OSDP_KERNELS                                                                                         \
  void cast(void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count, void* stream);      \
  void pack(void* dst, const void* src, int64_t rows, int64_t cols, int64_t ld, DType dtype, void* stream);  \
  void unpack(void* dst, const void* src, int64_t rows, int64_t cols, int64_t ld, DType dtype,               \
              void* stream);                                                                                 \
  void accumulate(void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count, double scale, \
                  void* stream);                                                                             \
  void scale(void* dst, DType dtype, int64_t count, double factor, void* stream);                            \
  void zero(void* dst, DType dtype, int64_t count, void* stream);

namespace cpu {
OSDP_KERNELS
}
namespace cuda {  // only in builds with CUDA
OSDP_KERNELS
}
#undef OSDP_KERNELS

}  // namespace osdp::kernels
