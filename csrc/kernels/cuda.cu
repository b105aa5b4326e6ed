// The CUDA kernels: see kernels.hpp.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "kernels/arguments.hpp"
#include "kernels/kernels.hpp"

namespace osdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks =
    4096;  // grid-stride loops: enough to fill any device, few enough to launch cheaply

template <class F>
void with_cuda_type(DType dtype, F&& f) {
  with_type<float, double, __nv_bfloat16, __half>(dtype, f);
}

template <class A, class B>
using Compute = std::conditional_t<std::is_same_v<A, double> || std::is_same_v<B, double>, double, float>;

template <class C, class T>
__device__ C load(T value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return static_cast<C>(__bfloat162float(value));
  } else if constexpr (std::is_same_v<T, __half>) {
    return static_cast<C>(__half2float(value));
  } else {
    return static_cast<C>(value);
  }
}

template <class T, class C>
__device__ T rounded(C value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

__device__ int64_t first_index() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ int64_t index_step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

template <class D, class S>
__global__ void cast_kernel(D* __restrict__ dst, const S* __restrict__ src, int64_t count) {
  using C = Compute<D, S>;
  for (int64_t i = first_index(); i < count; i += index_step()) dst[i] = rounded<D>(load<C>(src[i]));
}

template <class D, class S>
__global__ void accumulate_kernel(D* __restrict__ dst, const S* __restrict__ src, int64_t count,
                                  double scale) {
  using C = Compute<D, S>;
  const C factor = static_cast<C>(scale);
  for (int64_t i = first_index(); i < count; i += index_step()) {
    dst[i] = rounded<D>(load<C>(dst[i]) + factor * load<C>(src[i]));
  }
}

template <class D>
__global__ void scale_kernel(D* dst, int64_t count, double by) {
  using C = Compute<D, D>;
  const C factor = static_cast<C>(by);
  for (int64_t i = first_index(); i < count; i += index_step()) dst[i] = rounded<D>(load<C>(dst[i]) * factor);
}

unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>(std::min<int64_t>(kMaxBlocks, (count + kThreads - 1) / kThreads));
}

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

void check(const char* kernel, cudaError_t status) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string("osdp CUDA kernel ") + kernel + ": " + cudaGetErrorString(status));
  }
}

void copy_rows(const char* kernel, void* dst, int64_t dst_ld_bytes, const void* src, int64_t src_ld_bytes,
               int64_t rows, int64_t row_bytes, void* stream) {
  if (rows == 0 || row_bytes == 0) return;
  if (rows == 1)
    dst_ld_bytes = src_ld_bytes = row_bytes;  // one row: its stride says nothing, and may be less
  // The copy engine's own 2-D copy: already at memory speed, and no launch to tune.
  check(kernel, cudaMemcpy2DAsync(dst, static_cast<size_t>(dst_ld_bytes), src,
                                  static_cast<size_t>(src_ld_bytes), static_cast<size_t>(row_bytes),
                                  static_cast<size_t>(rows), cudaMemcpyDeviceToDevice, as_stream(stream)));
}

}  // namespace

void cast(void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count, void* stream) {
  check_range("cast", dst, src, count);
  if (count == 0) return;
  if (dst_dtype == src_dtype) {
    check("cast", cudaMemcpyAsync(dst, src, static_cast<size_t>(count * element_bytes(dst_dtype)),
                                  cudaMemcpyDeviceToDevice, as_stream(stream)));
    return;
  }
  with_cuda_type(dst_dtype, [&](auto d) {
    with_cuda_type(src_dtype, [&](auto s) {
      using D = typename decltype(d)::type;
      using S = typename decltype(s)::type;
      cast_kernel<D, S><<<blocks_for(count), kThreads, 0, as_stream(stream)>>>(
          static_cast<D*>(dst), static_cast<const S*>(src), count);
    });
  });
  check("cast", cudaGetLastError());
}

void pack(void* dst, const void* src, int64_t rows, int64_t cols, int64_t ld, DType dtype, void* stream) {
  check_columns("pack", dst, src, rows, cols, ld);
  const int64_t bytes = element_bytes(dtype);
  copy_rows("pack", dst, cols * bytes, src, ld * bytes, rows, cols * bytes, stream);
}

void unpack(void* dst, const void* src, int64_t rows, int64_t cols, int64_t ld, DType dtype, void* stream) {
  check_columns("unpack", dst, src, rows, cols, ld);
  const int64_t bytes = element_bytes(dtype);
  copy_rows("unpack", dst, ld * bytes, src, cols * bytes, rows, cols * bytes, stream);
}

void accumulate(void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count, double scale,
                void* stream) {
  check_range("accumulate", dst, src, count);
  if (count == 0) return;
  with_cuda_type(dst_dtype, [&](auto d) {
    with_cuda_type(src_dtype, [&](auto s) {
      using D = typename decltype(d)::type;
      using S = typename decltype(s)::type;
      accumulate_kernel<D, S><<<blocks_for(count), kThreads, 0, as_stream(stream)>>>(
          static_cast<D*>(dst), static_cast<const S*>(src), count, scale);
    });
  });
  check("accumulate", cudaGetLastError());
}

void scale(void* dst, DType dtype, int64_t count, double factor, void* stream) {
  check_range("scale", dst, dst, count);
  if (count == 0) return;
  with_cuda_type(dtype, [&](auto d) {
    using D = typename decltype(d)::type;
    scale_kernel<D>
        <<<blocks_for(count), kThreads, 0, as_stream(stream)>>>(static_cast<D*>(dst), count, factor);
  });
  check("scale", cudaGetLastError());
}

void zero(void* dst, DType dtype, int64_t count, void* stream) {
  check_range("zero", dst, dst, count);
  if (count == 0) return;
  check("zero",
        cudaMemsetAsync(dst, 0, static_cast<size_t>(count * element_bytes(dtype)), as_stream(stream)));
}

}  // namespace osdp::kernels::cuda
