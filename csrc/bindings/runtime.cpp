// Bindings of csrc/runtime.
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

void bind_runtime(py::module_& /*m*/) {}
