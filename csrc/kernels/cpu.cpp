// The CPU kernels: see kernels.hpp.
#include <cstring>
#include <type_traits>

#include "kernels/arguments.hpp"
#include "kernels/half.hpp"
#include "kernels/kernels.hpp"

namespace osdp::kernels::cpu {
namespace {

template <class F>
void with_cpu_type(DType dtype, F&& f) {
  with_type<float, double, BFloat16, Float16>(dtype, f);
}

template <class A, class B>
using Compute = std::conditional_t<std::is_same_v<A, double> || std::is_same_v<B, double>, double, float>;

template <class D, class S>
void cast_loop(D* __restrict dst, const S* __restrict src, int64_t count) {
  using C = Compute<D, S>;
  for (int64_t i = 0; i < count; ++i) store<C>(dst[i], load<C>(src[i]));
}

template <class D, class S>
void accumulate_loop(D* __restrict dst, const S* __restrict src, int64_t count, double scale) {
  using C = Compute<D, S>;
  const C factor = static_cast<C>(scale);
  for (int64_t i = 0; i < count; ++i) store<C>(dst[i], load<C>(dst[i]) + factor * load<C>(src[i]));
}

template <class D>
void scale_loop(D* dst, int64_t count, double by) {
  using C = Compute<D, D>;
  const C factor = static_cast<C>(by);
  for (int64_t i = 0; i < count; ++i) store<C>(dst[i], load<C>(dst[i]) * factor);
}

void copy_rows(char* dst, int64_t dst_ld_bytes, const char* src, int64_t src_ld_bytes, int64_t rows,
               int64_t row_bytes) {
  if (rows == 0 || row_bytes == 0) return;  // memcpy must not be given null, even for nothing
  if (dst_ld_bytes == row_bytes && src_ld_bytes == row_bytes) {
    std::memcpy(dst, src, static_cast<size_t>(rows * row_bytes));
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(dst + row * dst_ld_bytes, src + row * src_ld_bytes, static_cast<size_t>(row_bytes));
  }
}

}  // namespace

void cast(void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count, void* /*stream*/) {
  check_range("cast", dst, src, count);
  if (count == 0) return;
  if (dst_dtype == src_dtype) {
    std::memcpy(dst, src, static_cast<size_t>(count * element_bytes(dst_dtype)));
    return;
  }
  with_cpu_type(dst_dtype, [&](auto d) {
    with_cpu_type(src_dtype, [&](auto s) {
      using D = typename decltype(d)::type;
      using S = typename decltype(s)::type;
      cast_loop(static_cast<D*>(dst), static_cast<const S*>(src), count);
    });
  });
}

void pack(void* dst, const void* src, int64_t rows, int64_t cols, int64_t ld, DType dtype, void* /*stream*/) {
  check_columns("pack", dst, src, rows, cols, ld);
  const int64_t bytes = element_bytes(dtype);
  copy_rows(static_cast<char*>(dst), cols * bytes, static_cast<const char*>(src), ld * bytes, rows,
            cols * bytes);
}

void unpack(void* dst, const void* src, int64_t rows, int64_t cols, int64_t ld, DType dtype,
            void* /*stream*/) {
  check_columns("unpack", dst, src, rows, cols, ld);
  const int64_t bytes = element_bytes(dtype);
  copy_rows(static_cast<char*>(dst), ld * bytes, static_cast<const char*>(src), cols * bytes, rows,
            cols * bytes);
}

void accumulate(void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count, double scale,
                void* /*stream*/) {
  check_range("accumulate", dst, src, count);
  with_cpu_type(dst_dtype, [&](auto d) {
    with_cpu_type(src_dtype, [&](auto s) {
      using D = typename decltype(d)::type;
      using S = typename decltype(s)::type;
      accumulate_loop(static_cast<D*>(dst), static_cast<const S*>(src), count, scale);
    });
  });
}

void scale(void* dst, DType dtype, int64_t count, double factor, void* /*stream*/) {
  check_range("scale", dst, dst, count);
  with_cpu_type(dtype, [&](auto d) {
    using D = typename decltype(d)::type;
    scale_loop(static_cast<D*>(dst), count, factor);
  });
}

void zero(void* dst, DType dtype, int64_t count, void* /*stream*/) {
  check_range("zero", dst, dst, count);
  if (count > 0)
    std::memset(dst, 0, static_cast<size_t>(count * element_bytes(dtype)));  // +0 in all four types
}

}  // namespace osdp::kernels::cpu
