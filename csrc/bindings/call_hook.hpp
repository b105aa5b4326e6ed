// CallHook: the hooks of one module's calls, which drive a Runtime.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <vector>

#include "bindings/held.hpp"
#include "runtime/runtime.hpp"

namespace osdp::bindings {

namespace py = pybind11;
namespace rt = osdp::runtime;

// See Note [A module tree that changes] in module_tree.py. `registrations` counts modules, parameters and
// named buffers that were registered anywhere in this process; `look` compares a model's tree with its
// runtime's parameters. Both are protected by the GIL.
struct TreeWatch {
  uint64_t registrations = 0;
  py::object look;
};
TreeWatch& tree_watch();

// The object that a module's hooks call. It keeps the runtime alive as long as the hooks exist.
struct CallHook {
  std::shared_ptr<rt::Runtime> runtime;
  rt::Call* call;
  bool warned = false;
  std::vector<Held> held;   // parameters that the call gathers
  std::vector<Held> whole;  // for the model's call: parameters that every rank holds in full

  void before(const py::object& module, const py::tuple& args, const py::dict& kwargs);
  // After an exception in the call, `output` is None (the hook is registered with always_call).
  void after(const py::object& module, const py::tuple& args, const py::dict& kwargs,
             const py::object& output) const;
  // Ends the call as failed: Note [Interrupted hooks] in osdp/sharding/model_call.py.
  void abandon() const;
  // Whether the forward about to run belongs to the call that `before` has begun.
  bool begins_forward() const { return runtime->forward().begins_forward(*call); }

 private:
  void look_at_tree() const;
  void look_at_changed_tree() const;
  void warn_of_autocast();
  void check_other(const Held& h) const;
  void refuse_fake(const std::vector<at::Tensor>& tensors, const char* what) const;
};

}  // namespace osdp::bindings
