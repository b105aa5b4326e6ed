#include "bindings/search/budget.hpp"

#include <csignal>

namespace py = pybind11;

namespace osdp {

Signals::Signals() {
  const py::module_ signal = py::module_::import("signal");
  handler_ = signal.attr("getsignal")(SIGINT);
  const bool raises = handler_.is(signal.attr("default_int_handler"));
  if (raises || PyCallable_Check(handler_.ptr()) == 0) return;
  py::cpp_function noting([noted = noted_, handler = handler_](const py::args& arguments) {
    *noted = true;
    return handler(*arguments);
  });
  try {
    signal.attr("signal")(SIGINT, noting);
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_ValueError)) throw;
    return;  // Python runs handlers in its main thread, and this is another
  }
  noting_ = std::move(noting);
}

Signals::~Signals() {
  py::error_scope pending;
  try {
    unwrap();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("a signal handler, after a search");
  }
}

std::function<bool()> Signals::ask() const {
  return [noted = noted_] {
    py::gil_scoped_acquire gil;
    return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0 || *noted;
  };
}

void Signals::end(bool found) {
  if (PyErr_Occurred() == nullptr) unwrap();
  if (PyErr_Occurred() == nullptr && *noted_ && !found) PyErr_SetNone(PyExc_KeyboardInterrupt);
  if (PyErr_Occurred() == nullptr) return;
  if (!found || PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) == 0) throw py::error_already_set();
  PyErr_Clear();
}

// A handler that was installed meanwhile stays.
void Signals::unwrap() {
  if (!noting_) return;
  const py::object noting = std::move(noting_);
  const py::module_ signal = py::module_::import("signal");
  if (!signal.attr("getsignal")(SIGINT).is(noting)) return;
  try {
    signal.attr("signal")(SIGINT, handler_);
  } catch (const py::error_already_set&) {  // of a handler, which ran before
    signal.attr("signal")(SIGINT, handler_);
    throw;
  }
}

}  // namespace osdp
