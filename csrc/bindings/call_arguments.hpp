// CallArguments: the arguments of a call, kept for a second one.
#pragma once

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace osdp::bindings {

namespace py = pybind11;

// Makes the arguments of the first call again, also where the caller has put something else in its containers
// since (features.append(block(features))): tuples, lists, mappings and dataclasses are copied, those that
// osdp.base.tensor_trees.map_tensors copies. Tensors in them are saved as by a node: a checkpoint around the
// call sees them, and one that was written to since is an error.
class CallArguments {
 public:
  CallArguments(const py::tuple& args, const py::dict& kwargs) : args_(kept(args)), kwargs_(kept(kwargs)) {}

  py::object args() const { return args_(); }
  py::object kwargs() const { return kwargs_(); }

 private:
  using Again = std::function<py::object()>;  // makes the value once more

  Again args_, kwargs_;

  static Again kept(py::handle value) {
    PyObject* o = value.ptr();
    if (THPVariable_Check(o)) {
      const auto saved =
          std::make_shared<torch::autograd::SavedVariable>(THPVariable_Unpack(o), /*is_output=*/false);
      return [saved] { return py::reinterpret_steal<py::object>(THPVariable_Wrap(saved->unpack())); };
    }
    const bool named = PyTuple_Check(o) && py::hasattr(value, "_fields");
    if (PyTuple_CheckExact(o) || named) return kept_tuple(value, named);
    if (PyDict_CheckExact(o)) return kept_dict(value);
    if (PyList_CheckExact(o)) return [items = kept_items(value)] { return made<py::list>(items); };
    if (py::hasattr(value, "items") && py::hasattr(value, "__setitem__"))
      return kept_in_copy(value, py::list(value.attr("items")()), &PyObject_SetItem);
    if (const char* fields = "__dataclass_fields__"; !PyType_Check(o) && py::hasattr(value, fields)) {
      py::list attributes;
      for (py::handle name : py::object(value.attr(fields)))
        if (py::hasattr(value, name)) attributes.append(py::make_tuple(name, value.attr(name)));
      return kept_in_copy(value, attributes, &PyObject_GenericSetAttr);  // also of frozen ones
    }
    return [same = py::reinterpret_borrow<py::object>(value)] { return same; };
  }

  static std::vector<Again> kept_items(py::handle sequence) {
    std::vector<Again> items;
    for (py::handle item : sequence) items.push_back(kept(item));
    return items;
  }

  template <typename Sequence>
  static Sequence made(const std::vector<Again>& items) {
    Sequence sequence(items.size());
    for (size_t i = 0; i < items.size(); ++i) sequence[i] = items[i]();
    return sequence;
  }

  static Again kept_tuple(py::handle value, bool named) {
    auto items = kept_items(value);
    if (!named) return [items = std::move(items)] { return made<py::tuple>(items); };
    return [items = std::move(items), type = py::type::of(value)] { return type(*made<py::tuple>(items)); };
  }

  static Again kept_dict(py::handle value) {
    std::vector<std::pair<py::object, Again>> items;
    for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(value))
      items.emplace_back(py::reinterpret_borrow<py::object>(key), kept(item));
    return [items = std::move(items)] {
      py::dict again;
      for (const auto& [key, item] : items) again[key] = item();
      return again;
    };
  }

  // What copy.copy copies, with `set(copy, name, part)` for each of its parts.
  static Again kept_in_copy(py::handle value, const py::list& parts,
                            int (*set)(PyObject*, PyObject*, PyObject*)) {
    const py::object copy = py::module_::import("copy").attr("copy");
    const py::object rest = copy(value);
    std::vector<std::pair<py::object, Again>> items;
    for (py::handle part : parts) {
      const auto [name, item] = part.cast<std::pair<py::object, py::object>>();
      items.emplace_back(name, kept(item));
      // It would hold what the caller puts into a list of it later: the outputs, and with them this.
      if (set(rest.ptr(), name.ptr(), Py_None) != 0) throw py::error_already_set();
    }
    return [items = std::move(items), copy, rest, set] {
      py::object again = copy(rest);
      for (const auto& [name, item] : items)
        if (set(again.ptr(), name.ptr(), item().ptr()) != 0) throw py::error_already_set();
      return again;
    };
  }
};

}  // namespace osdp::bindings
