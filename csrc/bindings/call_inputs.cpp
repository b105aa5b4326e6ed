// What a recomputed block's call looks at before and after its forward, at every call: the versions and
// devices of the tensors in its arguments, and where its buffers are. In C++ since in Python it took a fifth
// of a small block's forward.
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bindings/tensors_in.hpp"

namespace osdp::bindings {
namespace {

std::vector<at::Tensor> tensors_in(const py::object& tree) {
  TensorsIn all;
  all.visit(tree);
  return std::move(all.found);
}

// As osdp.base.tensor_trees.versions_of, as bytes: differ when a tensor was written to, added or removed.
py::bytes versions_in(const py::object& tree) {
  std::vector<std::pair<uint64_t, uint64_t>> versions;  // storage, version; no padding
  for (const at::Tensor& t : tensors_in(tree)) {
    if (t.layout() != at::kStrided) continue;
    const void* where = t.has_storage() ? static_cast<const void*>(t.storage().unsafeGetStorageImpl())
                                        : t.unsafeGetTensorImpl();
    versions.emplace_back(reinterpret_cast<uintptr_t>(where), t.is_inference() ? 0 : t._version());
  }
  std::ranges::sort(versions);
  versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
  return {reinterpret_cast<const char*>(versions.data()), versions.size() * sizeof(versions[0])};
}

// The devices with generators of their own, ascending by type and index.
std::vector<std::pair<std::string, int64_t>> accelerators_in(const py::object& tree) {
  std::set<std::pair<std::string, int64_t>> devices;
  for (const at::Tensor& t : tensors_in(tree))
    if (!t.is_cpu() && !t.is_meta())
      devices.emplace(c10::DeviceTypeName(t.device().type(), true), t.get_device());
  return {devices.begin(), devices.end()};
}

// (module, name) for each buffer, in the order of module.modules().
class Buffers {
 public:
  py::list found;

  void visit(const py::object& module) {
    if (!seen_.insert(module.ptr()).second) return;
    for (const auto& [name, buffer] : py::dict(module.attr("_buffers")))
      if (!buffer.is_none()) found.append(py::make_tuple(module, name));
    for (const auto& [name, child] : py::dict(module.attr("_modules")))
      if (!child.is_none()) visit(py::reinterpret_borrow<py::object>(child));
  }

 private:
  std::unordered_set<PyObject*> seen_;
};

}  // namespace
}  // namespace osdp::bindings

void bind_call_inputs(pybind11::module_& m) {
  using namespace osdp::bindings;
  m.def("versions_in", &versions_in, py::arg("tree"),
        "Bytes that differ once a tensor in `tree` (containers and the attributes of objects) was written "
        "to, added or removed.");
  m.def("accelerators_in", &accelerators_in, py::arg("tree"),
        "(type, index) of the devices other than the CPU and meta on which tensors in `tree` are, each once, "
        "sorted.");
  m.def(
      "buffers_in",
      [](const py::object& module) {
        Buffers buffers;
        buffers.visit(module);
        return buffers.found;
      },
      py::arg("module"), "(module, name) for each buffer of `module` and the modules in it, each once.");
}
