// TensorsIn: the tensors in the inputs or outputs of a module's call.
#pragma once

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <unordered_set>
#include <vector>

namespace osdp::bindings {

namespace py = pybind11;

// Collects the tensors in a module's inputs or outputs: in tuples, lists, sets, dicts, dataclasses and any
// object's attributes, however nested. An object is visited once; modules, types and callables are skipped.
class TensorsIn {
 public:
  std::vector<at::Tensor> found;

  void visit(py::handle value, int depth = 0) {
    if (value.is_none() || depth > kDeepest) return;
    PyObject* o = value.ptr();
    if (THPVariable_Check(o)) {
      found.push_back(THPVariable_Unpack(o));
    } else if (PyTuple_Check(o) || PyList_Check(o) || PyAnySet_Check(o)) {
      if (!first_time(o)) return;
      for (py::handle item : value) visit(item, depth + 1);
    } else if (PyDict_Check(o)) {
      if (!first_time(o)) return;
      PyObject *key, *item;
      Py_ssize_t position = 0;
      while (PyDict_Next(o, &position, &key, &item)) visit(item, depth + 1);
    } else if (!is_plain(o) && first_time(o)) {
      visit_attributes(value, depth);
    }
  }

 private:
  static constexpr int kDeepest = 16;
  std::unordered_set<PyObject*> seen_;

  bool first_time(PyObject* o) { return seen_.insert(o).second; }

  static bool is_plain(PyObject* o) {
    return PyUnicode_Check(o) || PyLong_Check(o) || PyFloat_Check(o) || PyBytes_Check(o) || PyType_Check(o) ||
           PyCallable_Check(o) || PyModule_Check(o);
  }

  void visit_attributes(py::handle value, int depth) {
    if (auto attributes =
            py::reinterpret_steal<py::object>(PyObject_GetAttrString(value.ptr(), "__dict__"))) {
      visit(attributes, depth + 1);
    } else {
      PyErr_Clear();
    }
    // Classes with __slots__ (dataclasses, too) have no __dict__.
    for (py::handle type : py::reinterpret_borrow<py::tuple>(Py_TYPE(value.ptr())->tp_mro)) {
      auto slots = py::reinterpret_steal<py::object>(PyObject_GetAttrString(type.ptr(), "__slots__"));
      if (!slots) {
        PyErr_Clear();
        continue;
      }
      if (py::isinstance<py::str>(slots)) slots = py::make_tuple(slots);
      for (py::handle name : slots) {
        if (auto item = py::reinterpret_steal<py::object>(PyObject_GetAttr(value.ptr(), name.ptr())))
          visit(item, depth + 1);
        else
          PyErr_Clear();
      }
    }
  }
};

}  // namespace osdp::bindings
