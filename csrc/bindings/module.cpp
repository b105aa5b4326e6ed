// osdp._C: elementwise, ops and runtime. Needs `import torch` before it, which loads the libraries that it
// links to.
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

void bind_errors(py::module_& m);
void bind_call_hook(py::module_& m);
void bind_call_inputs(py::module_& m);
void bind_collectives(py::module_& m);
void bind_elementwise(py::module_& m);
#ifdef OSDP_SENSITIVITY
void bind_left_out(py::module_& m);
#endif
void bind_ops(py::module_& m);
void bind_recomputed_call(py::module_& m);
void bind_runtime(py::module_& m);

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ of osdp: elementwise loops, the split matrix product, the sharding runtime.";
  bind_errors(m);
  bind_elementwise(m);
#ifdef OSDP_SENSITIVITY
  bind_left_out(m);
#endif
  bind_ops(m);
  bind_collectives(m);
  bind_call_hook(m);
  bind_call_inputs(m);
  bind_recomputed_call(m);
  bind_runtime(m);
}
