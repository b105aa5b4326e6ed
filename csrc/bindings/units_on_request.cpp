#include "bindings/units_on_request.hpp"

#include <vector>

namespace osdp::bindings {

namespace py = pybind11;
namespace rt = osdp::runtime;
using Release = py::call_guard<py::gil_scoped_release>;
using Indices = std::vector<int64_t>;

void bind_units_on_request(py::class_<rt::Runtime, std::shared_ptr<rt::Runtime>>& type) {
  type.def("unshard", &rt::Runtime::unshard, py::arg("params"), py::arg("wait"), Release(),
           "Begins to gather the units that hold these parameters (indices); they stay gathered: Note [Units "
           "that stay gathered]. Collective. Raises ShardingError while parameters are shown in full.")
      .def("await_unsharded", &rt::Runtime::await_unsharded, py::arg("params"), Release(),
           "Waits for `unshard`; between passes these parameters show their full values then, to be read: "
           "Note "
           "[What unshard() shows].")
      .def(
          "reshard", &rt::Runtime::reshard, py::arg("params"), Release(),
          "Reshards the units that hold these parameters and are not in use. Raises ShardingError if one was "
          "written to while it was shown to be read.")
      .def(
          "let_go", [](rt::Runtime& runtime) { runtime.let_go(/*trained=*/true); }, Release(),
          "Reshards the units that stay gathered and have a parameter that an optimizer may step. Raises as "
          "`reshard`.")
      .def("end_read_only", &rt::Runtime::end_read_only, Release(),
           "What await_unsharded shows ends: parameters show this rank's rows. Raises as `reshard`.")
      .def_property_readonly("any_stays", [](rt::Runtime& runtime) { return runtime.units().any_stays(); })
      .def(
          "set_stays_after_forward",
          [](rt::Runtime& runtime, const Indices& params, bool stays) {
            runtime.units().set_stays_after_forward(params, stays);
          },
          py::arg("params"), py::arg("stays"),
          "Whether the units that hold these parameters stay gathered after a forward; until then as their "
          "mode says.")
      .def(
          "set_stays_if_kept",
          [](rt::Runtime& runtime, const Indices& params, bool stays) {
            runtime.units().set_stays_if_kept(params, stays);
          },
          py::arg("params"), py::arg("stays"),
          "The same, where that was not set and the unit's mode keeps it from forward to backward.")
      .def(
          "set_stays_after_backward",
          [](rt::Runtime& runtime, const Indices& params, bool stays) {
            runtime.units().set_stays_after_backward(params, stays);
          },
          py::arg("params"), py::arg("stays"))
      .def(
          "set_gathers_in_backward",
          [](rt::Runtime& runtime, const Indices& params, bool gathers) {
            runtime.units().set_gathers_in_backward(params, gathers);
          },
          py::arg("params"), py::arg("gathers"),
          "False: backward does not gather them, since it reads none of them.");
}

}  // namespace osdp::bindings
