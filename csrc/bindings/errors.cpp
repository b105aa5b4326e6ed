// Bindings of faults/errors.hpp: the kinds of errors as classes of osdp.errors, and Ctrl-C while waiting.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <array>

#include "comm/lane.hpp"
#include "faults/errors.hpp"

namespace py = pybind11;
namespace comm = osdp::comm;
namespace faults = osdp::faults;

namespace {

std::array<PyObject*, faults::kErrorKinds> classes{};  // never released: errors may be thrown until exit

// Both torch's autograd engine and pybind11's translator below turn this into the right Python class.
class PythonError final : public torch::PyTorchError, public faults::KnownError {
 public:
  PythonError(faults::ErrorKind kind, std::string message)
      : torch::PyTorchError(std::move(message)), kind_(kind) {}
  PyObject* python_type() override { return classes[static_cast<size_t>(kind_)]; }
  faults::ErrorKind kind() const noexcept override { return kind_; }

 private:
  faults::ErrorKind kind_;
};

void throw_python_error(faults::ErrorKind kind, std::string message) {
  throw PythonError(kind, std::move(message));
}

void set_error_types(const py::list& types) {
  if (types.size() != classes.size()) throw py::value_error("one class per kind of faults/errors.hpp");
  for (size_t i = 0; i < classes.size(); ++i) classes[i] = py::object(types[i]).release().ptr();
  faults::set_thrower(&throw_python_error);
}

// Python runs signal handlers in the main thread between bytecodes, so not while that thread waits in C++.
void check_signals() {
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

}  // namespace

void bind_errors(py::module_& m) {
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (PythonError& e) {
      PyErr_SetString(e.python_type(), e.what());
    }
  });
  m.def("set_error_types", &set_error_types, py::arg("types"),
        "The classes of osdp.errors, in the order of ErrorKind in csrc/faults/errors.hpp");
  comm::set_signal_check(&check_signals);
}
