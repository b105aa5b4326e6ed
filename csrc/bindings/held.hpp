// Held: where a module finds one of its parameters, and what another took its place there.
#pragma once

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

namespace osdp::bindings {

namespace py = pybind11;

// The entry in which a module finds a parameter: torch.func.functional_call puts other tensors there during a
// call.
struct Held {
  py::dict parameters;  // of the module that owns it
  py::object leaf;
  py::object parameter;
  int64_t index = -1;

  // The tensor that replaces the parameter; undefined if none does.
  at::Tensor other() const {
    PyObject* found = PyDict_GetItem(parameters.ptr(), leaf.ptr());
    const bool is_other = found && found != parameter.ptr() && THPVariable_Check(found);
    return is_other ? THPVariable_Unpack(found) : at::Tensor();
  }
};

}  // namespace osdp::bindings
