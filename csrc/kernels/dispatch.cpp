// From a Device value to cpu:: or cuda::. See kernels.hpp.
#include <stdexcept>

#include "kernels/kernels.hpp"

#ifdef OSDP_WITH_CUDA
#define OSDP_DISPATCH(call)                        \
  do {                                             \
    if (device == Device::CUDA) return cuda::call; \
    return cpu::call;                              \
  } while (false)
#else
#define OSDP_DISPATCH(call)                                                                               \
  do {                                                                                                    \
    if (device == Device::CUDA) {                                                                         \
      throw std::runtime_error(                                                                           \
          "osdp was built without its CUDA kernels; rebuild it where nvcc and a CUDA build of torch are " \
          "found");                                                                                       \
    }                                                                                                     \
    return cpu::call;                                                                                     \
  } while (false)
#endif

namespace osdp::kernels {

bool built_with_cuda() {
#ifdef OSDP_WITH_CUDA
  return true;
#else
  return false;
#endif
}

void cast(Device device, void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count,
          void* stream) {
  OSDP_DISPATCH(cast(dst, dst_dtype, src, src_dtype, count, stream));
}

void pack(Device device, void* dst, const void* src, int64_t rows, int64_t cols, int64_t ld, DType dtype,
          void* stream) {
  OSDP_DISPATCH(pack(dst, src, rows, cols, ld, dtype, stream));
}

void unpack(Device device, void* dst, const void* src, int64_t rows, int64_t cols, int64_t ld, DType dtype,
            void* stream) {
  OSDP_DISPATCH(unpack(dst, src, rows, cols, ld, dtype, stream));
}

void accumulate(Device device, void* dst, DType dst_dtype, const void* src, DType src_dtype, int64_t count,
                double scale, void* stream) {
  OSDP_DISPATCH(accumulate(dst, dst_dtype, src, src_dtype, count, scale, stream));
}

void scale(Device device, void* dst, DType dtype, int64_t count, double factor, void* stream) {
  OSDP_DISPATCH(scale(dst, dtype, count, factor, stream));
}

void zero(Device device, void* dst, DType dtype, int64_t count, void* stream) {
  OSDP_DISPATCH(zero(dst, dtype, count, stream));
}

}  // namespace osdp::kernels
