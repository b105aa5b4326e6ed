// Bindings of csrc/kernels, over tensors: osdp._C.kernels. Tests use them; the runtime calls the kernels
// themselves.
#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include "kernels/kernels.hpp"
#include "runtime/arithmetic.hpp"

namespace py = pybind11;

namespace {

namespace kernels = osdp::kernels;

kernels::DType dtype_of(const at::Tensor& t) {
  const auto dtype = osdp::runtime::kernel_dtype(t.scalar_type());
  TORCH_CHECK_TYPE(dtype, "osdp kernels: dtype ", t.scalar_type(),
                   " is none of float32, float64, bfloat16, float16");
  return *dtype;
}

// CUDA kernels run on the legacy default stream here: enough for tests, which synchronise.
kernels::Device kernel_device(const at::Tensor& t) {
  return t.is_cuda() ? kernels::Device::CUDA : kernels::Device::CPU;
}

void check_pair(const at::Tensor& dst, const at::Tensor& src) {
  TORCH_CHECK_VALUE(dst.is_contiguous() && src.is_contiguous() && dst.numel() == src.numel(),
                    "osdp kernels: dst ", dst.sizes(), " and src ", src.sizes(),
                    " must be contiguous and of one number of elements");
  TORCH_CHECK_VALUE(dst.device() == src.device(), "osdp kernels: dst is on ", dst.device(), ", src on ",
                    src.device());
}

// `strided` [rows, cols] of unit column stride; `packed` contiguous, of the same shape and dtype.
void check_columns(const at::Tensor& strided, const at::Tensor& packed) {
  TORCH_CHECK_VALUE(
      strided.dim() == 2 && packed.sizes() == strided.sizes() && packed.is_contiguous() &&
          (strided.stride(1) == 1 || strided.size(1) <= 1) && packed.scalar_type() == strided.scalar_type() &&
          packed.device() == strided.device(),
      "osdp kernels: expected [rows, cols] of unit column stride and a contiguous one like it, got ",
      strided.sizes(), " and ", packed.sizes());
}

}  // namespace

void bind_kernels(py::module_& parent) {
  auto m = parent.def_submodule("kernels", "Element-wise kernels, single-threaded on the CPU.");
  m.def("built_with_cuda", &kernels::built_with_cuda);
  m.def(
      "cast",
      [](at::Tensor& dst, const at::Tensor& src) {
        check_pair(dst, src);
        kernels::cast(kernel_device(dst), dst.mutable_data_ptr(), dtype_of(dst), src.const_data_ptr(),
                      dtype_of(src), src.numel());
      },
      py::arg("dst"), py::arg("src"), "dst = src, rounded to nearest even.");
  m.def(
      "pack",
      [](at::Tensor& dst, const at::Tensor& src) {
        check_columns(src, dst);
        kernels::pack(kernel_device(dst), dst.mutable_data_ptr(), src.const_data_ptr(), src.size(0),
                      src.size(1), src.stride(0), dtype_of(dst));
      },
      py::arg("dst"), py::arg("src"), "Contiguous dst = a column range src.");
  m.def(
      "unpack",
      [](at::Tensor& dst, const at::Tensor& src) {
        check_columns(dst, src);
        kernels::unpack(kernel_device(dst), dst.mutable_data_ptr(), src.const_data_ptr(), dst.size(0),
                        dst.size(1), dst.stride(0), dtype_of(dst));
      },
      py::arg("dst"), py::arg("src"), "A column range dst = contiguous src.");
  m.def(
      "accumulate",
      [](at::Tensor& dst, const at::Tensor& src, double scale) {
        check_pair(dst, src);
        kernels::accumulate(kernel_device(dst), dst.mutable_data_ptr(), dtype_of(dst), src.const_data_ptr(),
                            dtype_of(src), src.numel(), scale);
      },
      py::arg("dst"), py::arg("src"), py::arg("scale") = 1.0, "dst += scale * src.");
  m.def(
      "scale",
      [](at::Tensor& dst, double factor) {
        check_pair(dst, dst);
        kernels::scale(kernel_device(dst), dst.mutable_data_ptr(), dtype_of(dst), dst.numel(), factor);
      },
      py::arg("dst"), py::arg("factor"), "dst *= factor.");
  m.def(
      "zero",
      [](at::Tensor& dst) {
        check_pair(dst, dst);
        kernels::zero(kernel_device(dst), dst.mutable_data_ptr(), dtype_of(dst), dst.numel());
      },
      py::arg("dst"), "dst = 0.");
}
