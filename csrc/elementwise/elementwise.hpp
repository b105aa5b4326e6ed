// Elementwise casts, sums and scalings of arrays in host memory.
//
// The interface is pointers and element counts, without torch, so that ring reductions do not need it. There
// are no threads either: these are loops that the compiler vectorises, called from a lane's thread beside the
// compute threads. A caller with idle threads divides the range itself.
//
// Ranges must not overlap, and counts may be 0. Negative counts, and null pointers with a positive count, are
// refused (std::invalid_argument).
#pragma once

#include <cstdint>

namespace osdp::elementwise {

enum class DType { Float32, Float64, BFloat16, Float16 };

// dst[i] = src[i], rounded to nearest even; any pair of types (to 16 bits via float, as torch does).
void cast(void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count);

// dst[i] += factor * src[i], computed in double where either type is double, else in float; stored rounded.
void accumulate(void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count,
                double factor = 1.0);

// dst[i] *= factor, computed in double for double, else in float.
void scale(void* dst, DType dtype, int64_t count, double factor);

}  // namespace osdp::elementwise
