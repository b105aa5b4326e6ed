#include "elementwise/elementwise.hpp"

#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "elementwise/half.hpp"

namespace osdp::elementwise {
namespace {

void check_range(const char* operation, const void* dst, const void* src, int64_t count) {
  const std::string what = std::string("osdp elementwise ") + operation + ": ";
  if (count < 0)
    throw std::invalid_argument(what + "count is " + std::to_string(count) + "; it must not be negative");
  if (count > 0 && (dst == nullptr || src == nullptr))
    throw std::invalid_argument(what + "null pointer for " + std::to_string(count) + " elements");
}

template <class T>
struct Type {
  using type = T;
};

// Calls f(Type<T>{}) with the T that is stored for `dtype`.
template <class F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::Float32:
      return f(Type<float>{});
    case DType::Float64:
      return f(Type<double>{});
    case DType::BFloat16:
      return f(Type<BFloat16>{});
    case DType::Float16:
      return f(Type<Float16>{});
  }
}

template <class F>
void with_types(DType first, DType second, F&& f) {
  with_type(first, [&](auto a) { with_type(second, [&](auto b) { f(a, b); }); });
}

template <class A, class B>
using Compute = std::conditional_t<std::is_same_v<A, double> || std::is_same_v<B, double>, double, float>;

template <class D, class S>
void cast_loop(D* __restrict dst, const S* __restrict src, int64_t count) {
  using C = Compute<D, S>;
  for (int64_t i = 0; i < count; ++i) store<C>(dst[i], load<C>(src[i]));
}

template <class D, class S>
void accumulate_loop(D* __restrict dst, const S* __restrict src, int64_t count, double by) {
  using C = Compute<D, S>;
  const C factor = static_cast<C>(by);
  for (int64_t i = 0; i < count; ++i) store<C>(dst[i], load<C>(dst[i]) + factor * load<C>(src[i]));
}

template <class D>
void scale_loop(D* dst, int64_t count, double by) {
  using C = Compute<D, D>;
  const C factor = static_cast<C>(by);
  for (int64_t i = 0; i < count; ++i) store<C>(dst[i], load<C>(dst[i]) * factor);
}

}  // namespace

void cast(void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count) {
  check_range("cast", dst, src, count);
  if (count == 0) return;
  with_types(dst_dtype, src_dtype, [&](auto d, auto s) {
    using D = typename decltype(d)::type;
    using S = typename decltype(s)::type;
    if constexpr (std::is_same_v<D, S>)
      std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(D));
    else
      cast_loop(static_cast<D*>(dst), static_cast<const S*>(src), count);
  });
}

void accumulate(void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count, double factor) {
  check_range("accumulate", dst, src, count);
  with_types(dst_dtype, src_dtype, [&](auto d, auto s) {
    using D = typename decltype(d)::type;
    using S = typename decltype(s)::type;
    accumulate_loop(static_cast<D*>(dst), static_cast<const S*>(src), count, factor);
  });
}

void scale(void* dst, DType dtype, int64_t count, double factor) {
  check_range("scale", dst, dst, count);
  with_type(dtype, [&](auto d) {
    using D = typename decltype(d)::type;
    scale_loop(static_cast<D*>(dst), count, factor);
  });
}

}  // namespace osdp::elementwise
