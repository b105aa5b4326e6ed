// Bindings of comm/left_out.hpp, for tests.
#include "comm/left_out.hpp"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

void bind_left_out(py::module_& m) {
  m.def("leave_out", &osdp::comm::leave_out, py::arg("site"),
        "For tests: from now on notes which calls order streams, and leaves out the one of this name (\"\": "
        "none).");
  m.def("ordering_sites", &osdp::comm::ordering_sites, "The names of those made since `leave_out`.");
}
