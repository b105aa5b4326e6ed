// osdp._search: csrc/search. No torch library is linked.
#include <pybind11/pybind11.h>

#include "search/problem/problem.hpp"

namespace py = pybind11;

void bind_problem(py::module_& m);      // bindings/search/problem.cpp
void bind_simulate(py::module_& m);     // bindings/search/simulate.cpp
void bind_planner(py::module_& m);      // bindings/search/planner.cpp
void bind_certificate(py::module_& m);  // bindings/search/certificate.cpp
void bind_knapsack(py::module_& m);     // bindings/search/knapsack.cpp
void bind_pipeline(py::module_& m);     // bindings/search/pipeline.cpp

PYBIND11_MODULE(_search, m) {
  m.doc() = "The planner's search (csrc/search). Use osdp.solve and osdp.search.";
  py::register_exception<osdp::search::InvalidProblem>(m, "InvalidProblem", PyExc_ValueError);
  bind_problem(m);
  bind_simulate(m);
  bind_planner(m);
  bind_certificate(m);
  bind_knapsack(m);
  bind_pipeline(m);
  m.def(
      "built_with", [] { return OSDP_TORCH_VERSION; },
      "The version of torch that the extension was compiled against.");
}
