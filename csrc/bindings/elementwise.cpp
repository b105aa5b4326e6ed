// Bindings of csrc/elementwise, over tensors: osdp._C.elementwise. For tests.
#include "elementwise/elementwise.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include "ops/accumulate.hpp"

namespace py = pybind11;

namespace {

namespace elementwise = osdp::elementwise;

elementwise::DType dtype_of(const at::Tensor& t) {
  const auto dtype = osdp::ops::elementwise_dtype(t.scalar_type());
  TORCH_CHECK_TYPE(dtype, "osdp elementwise: dtype ", t.scalar_type(),
                   " is not one of float32, float64, bfloat16, float16");
  return *dtype;
}

void check_pair(const at::Tensor& dst, const at::Tensor& src) {
  TORCH_CHECK_VALUE(dst.is_contiguous() && src.is_contiguous() && dst.numel() == src.numel(),
                    "osdp elementwise: dst ", dst.sizes(), " and src ", src.sizes(),
                    " must be contiguous and of one number of elements");
  TORCH_CHECK_VALUE(dst.is_cpu() && src.is_cpu(), "osdp elementwise: dst is on ", dst.device(), ", src on ",
                    src.device(), "; both must be in host memory");
}

}  // namespace

void bind_elementwise(py::module_& parent) {
  auto m = parent.def_submodule("elementwise",
                                "Casts, sums and scalings on the calling thread, of contiguous tensors in "
                                "host memory with equal numbers of "
                                "elements (else ValueError), in fp32, fp64, fp16 or bf16 (else TypeError).");
  m.def(
      "cast",
      [](at::Tensor& dst, const at::Tensor& src) {
        check_pair(dst, src);
        elementwise::cast(dst.mutable_data_ptr(), dtype_of(dst), src.const_data_ptr(), dtype_of(src),
                          src.numel());
      },
      py::arg("dst"), py::arg("src"), "dst = src, rounded to nearest even.");
  m.def(
      "accumulate",
      [](at::Tensor& dst, const at::Tensor& src, double factor) {
        check_pair(dst, src);
        elementwise::accumulate(dst.mutable_data_ptr(), dtype_of(dst), src.const_data_ptr(), dtype_of(src),
                                src.numel(), factor);
      },
      py::arg("dst"), py::arg("src"), py::arg("factor") = 1.0, "dst += factor * src.");
  m.def(
      "scale",
      [](at::Tensor& dst, double factor) {
        check_pair(dst, dst);
        elementwise::scale(dst.mutable_data_ptr(), dtype_of(dst), dst.numel(), factor);
      },
      py::arg("dst"), py::arg("factor"), "dst *= factor.");
}
