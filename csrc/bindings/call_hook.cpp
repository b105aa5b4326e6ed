#include "bindings/call_hook.hpp"

#include <string>

#include "bindings/tensors_in.hpp"
#include "comm/in_memory.hpp"
#include "faults/errors.hpp"

namespace osdp::bindings {
namespace {

constexpr uint64_t kFirstLooks = 3, kLookEvery = 100;

bool in_transform() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

// What `set_python_functions` was given.
struct PythonFunctions {
  py::object typed_error;        // (error, runtime, module) -> the error to raise instead, or None
  py::object is_differentiated;  // (tensor) -> whether a transform of torch.func takes its gradient
  py::object unwrapped;          // (tensor) -> what a transform of torch.func has wrapped, or None
};

PythonFunctions& python_functions() {
  static auto* functions = new PythonFunctions;  // never destroyed: Python may be finalized by then
  return *functions;
}

bool is_differentiated(const at::Tensor& t) {
  const py::object& is = python_functions().is_differentiated;
  return is && is(t).cast<bool>();
}

// Note [Ends of a call's graph]
// Backward through a call begins at one of its outputs. Within transforms of torch.func the graph belongs to
// the tensor that these wrap, and a tangent (torch.func.jvp, torch.autograd.forward_ad), which is no output,
// has a graph of its own.
void add_ends_of_graph(std::vector<at::Tensor>& outputs) {
  const bool transformed = in_transform();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (const at::Tensor tangent = outputs[i]._fw_grad(0); tangent.defined()) outputs.push_back(tangent);
    const py::object& unwrapped = python_functions().unwrapped;
    if (!transformed || !unwrapped) continue;
    if (const py::object within = unwrapped(outputs[i]); !within.is_none())
      outputs.push_back(within.cast<at::Tensor>());
  }
}

// The hook runs inside an `except` block of nn.Module's call, so this is the exception being handled.
py::object exception() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_GetExcInfo(&type, &value, &traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return value ? py::reinterpret_steal<py::object>(value) : py::none();
}

bool call_failed() { return !exception().is_none(); }

std::string exception_text() {
  const py::object error = exception();
  std::string text = Py_TYPE(error.ptr())->tp_name;
  try {
    text += ": " + std::string(py::str(error));
  } catch (const py::error_already_set&) {  // its __str__ raised: only the name is used
  }
  return text;
}

// Note [Errors of torch's own class]
// An error thrown deep inside torch, such as an access to a detached storage, reaches Python as a
// RuntimeError even if its text is ours. A failed call of a module runs its hooks and then raises the
// exception being handled, so the hook replaces that exception by one of our classes. For backward see
// osdp/sharding/torch_patches/autograd_errors.py, which chooses the class in both.
void retype(const CallHook& hook) {
  const py::object error = exception();
  PyObject* kind = reinterpret_cast<PyObject*>(Py_TYPE(error.ptr()));
  if (kind != PyExc_RuntimeError && kind != PyExc_NotImplementedError) return;
  const py::object& typed_error = python_functions().typed_error;
  if (!typed_error) return;
  const py::object typed = typed_error(error, hook.runtime, hook.call->module);
  if (!typed.is_none()) PyErr_SetHandledException(typed.ptr());
}

// Note [Copies of a sharded model]
// A copy would share the original's hooks, and with them its runtime. pickle and torch.save of a module reach
// its hooks, which refuse, and so does copy.deepcopy of a part of a model. A deep copy of the whole model
// does not reach them: see osdp/sharding/copies.py.
[[noreturn]] void refuse_copy(const CallHook& hook) {
  const std::string& name = hook.call->module;
  faults::throw_error(faults::ErrorKind::Sharding,
                      (name.empty() ? "this" : "'" + name + "'") +
                          " is a part of a sharded model and cannot be copied by itself: copy the model "
                          "(copy.deepcopy(model)), or copy the part before fully_shard.");
}

[[noreturn]] void refuse_pickle() {
  faults::throw_error(
      faults::ErrorKind::Sharding,
      "a sharded model cannot be pickled: save it with osdp.save(model, optimizer, directory) or "
      "torch.save(model.state_dict()).");
}

}  // namespace

TreeWatch& tree_watch() {
  static auto* watch = new TreeWatch;  // never destroyed: Python may be finalized by then
  return *watch;
}

void CallHook::before(const py::object&, const py::tuple& args, const py::dict& kwargs) {
  // First, since another parameter that was registered is there for good, and not for this call.
  if (!runtime->in_pass() && !runtime->full_params().summoned()) look_at_changed_tree();
  for (const Held& h : held) check_other(h);
  if (!whole.empty() && in_transform())
    for (const Held& h : whole) check_other(h);
  if (!runtime->in_pass() && !runtime->full_params().summoned()) look_at_tree();
  if (call->root && !warned && runtime->autocast_copies()) warn_of_autocast();
  if (call->root) {
    TensorsIn inputs;
    inputs.visit(args);
    inputs.visit(kwargs);
    refuse_fake(inputs.found, "an input");
  }
  py::gil_scoped_release no_gil;
  runtime->forward().begin_call(*call);
}

void CallHook::after(const py::object&, const py::tuple&, const py::dict&, const py::object& output) const {
  TensorsIn outputs;
  outputs.visit(output);
  const bool failed = output.is_none() && PyErr_Occurred() == nullptr && call_failed();
  if (failed) {
    retype(*this);
    runtime->backward().note_exception(exception_text());
  }
  const size_t returned = outputs.found.size();
  add_ends_of_graph(outputs.found);
  {
    py::gil_scoped_release no_gil;
    runtime->forward().end_call(*call, outputs.found, failed);
  }
  outputs.found.resize(returned);
  refuse_fake(outputs.found, "an output");
  if (!failed && runtime->tree_changed(tree_watch().registrations) && !runtime->in_pass() &&
      !runtime->full_params().summoned())
    tree_watch().look(runtime, "forward");
}

void CallHook::abandon() const {
  runtime->backward().note_exception("interrupted");
  py::gil_scoped_release no_gil;
  runtime->forward().end_call(*call, {}, /*failed=*/true);
}

void CallHook::refuse_fake(const std::vector<at::Tensor>& tensors, const char* what) const {
  for (const at::Tensor& t : tensors)
    OSDP_CHECK(
        !comm::is_fake(t), Sharding, "OSDP: ", what, " of ",
        call->module.empty() ? "the model's call" : "the call of '" + call->module + "'", ", ", t.sizes(),
        ", is a fake tensor (FakeTensorMode): it has no values. A cache that was filled while the model was "
        "traced? Describe a model before it is sharded, and empty what the trace has left.");
}

void CallHook::look_at_tree() const {
  bool due = false;
  if (call->root) {
    const uint64_t calls = runtime->count_root_call();
    due = calls <= kFirstLooks || calls % kLookEvery == 0;
  }
  if (due) tree_watch().look(runtime, "");
}

void CallHook::look_at_changed_tree() const {
  if (runtime->tree_changed(tree_watch().registrations)) tree_watch().look(runtime, "registered");
}

void CallHook::warn_of_autocast() {
  warned = true;
  const char* what =
      "OSDP: torch.autocast copies every weight to low precision and keeps the copies for backward, beside "
      "the gathered fp32 ones: gradients are right, memory is not saved and all bytes travel. Use "
      "precision='bf16' in osdp.search, or fully_shard(..., mixed_precision=osdp.MixedPrecision(...)).";
  if (PyErr_WarnEx(PyExc_UserWarning, what, 1) != 0) throw py::error_already_set();
}

void CallHook::check_other(const Held& h) const {
  const at::Tensor other = h.other();
  if (!other.defined()) return;
  const rt::Parameter& p = runtime->parameter(h.index);
  const at::Tensor& wrapper = p.wrapper();
  if (other.is_same(wrapper)) return;
  // A DTensor (of summon_full_params, say) is the whole, of which this rank has a part.
  const bool whole = wrapper.defined() && other.unsafeGetTensorImpl()->is_python_dispatch();
  OSDP_CHECK(other.sizes() == (whole ? wrapper.sizes() : p.full_sizes()), Sharding, "OSDP: parameter '",
             p.name(), "' is replaced by a tensor ", other.sizes(),
             " for this call (torch.func.functional_call?), and in full it is ", p.full_sizes(),
             ". Give full tensors, as model.state_dict() has them, or the model's own parameters.");
  const bool own = runtime->alone() || !runtime->sync();
  OSDP_CHECK(
      own || !in_transform() || !is_differentiated(other), Sharding,
      "OSDP: torch.func takes the gradient "
      "of parameter '",
      p.name(),
      "', which would be this rank's own: no average over the ranks, as backward "
      "makes. Use loss.backward() and the parameter's .grad; or call it inside osdp.no_sync(model) if this "
      "rank's own gradient is what you want.");
}

}  // namespace osdp::bindings

void bind_call_hook(pybind11::module_& m) {
  using namespace osdp::bindings;
  py::class_<CallHook>(
      m, "CallHook", "The hooks of one module's calls: `before` and `after` are registered as forward hooks.")
      .def("before", &CallHook::before)
      .def("after", &CallHook::after)
      .def("begins_forward", &CallHook::begins_forward)
      .def("abandon", &CallHook::abandon, "Ends the call, of which no hook ran any more, as failed.")
      .def(
          "hold",
          [](CallHook& hook, py::dict parameters, py::object leaf, py::object parameter, int64_t index) {
            auto& list = hook.runtime->parameter(index).whole() ? hook.whole : hook.held;
            list.push_back({std::move(parameters), std::move(leaf), std::move(parameter), index});
          },
          py::arg("parameters"), py::arg("leaf"), py::arg("parameter"), py::arg("index"),
          "Tells the hook where a parameter (of this index) is found: parameters[leaf] of the module that "
          "owns it. A "
          "call in which another tensor is found there is refused unless it has the full shape.")
      .def("__deepcopy__", [](const CallHook& hook, const py::object&) { refuse_copy(hook); })
      .def("__reduce_ex__", [](const CallHook&, int) -> py::tuple { refuse_pickle(); });

  m.def(
      "watch_tree", [](py::object look) { tree_watch().look = std::move(look); }, py::arg("look"),
      "Sets the function that compares a model's tree with its runtime: look(runtime, when). It is called "
      "before an outermost call ('registered': something was registered since the last look; '': from time "
      "to "
      "time) and after one in which something was registered ('forward').");
  m.def(
      "set_python_functions",
      [](py::object typed_error, py::object is_differentiated, py::object unwrapped) {
        python_functions() = {std::move(typed_error), std::move(is_differentiated), std::move(unwrapped)};
      },
      py::arg("typed_error"), py::arg("is_differentiated"), py::arg("unwrapped"),
      "What hooks of calls ask Python: typed_error(error, runtime, module), the error to raise instead of a "
      "RuntimeError of a module's call, or None; is_differentiated(tensor), whether torch.func takes its "
      "gradient; unwrapped(tensor), what a transform of torch.func has wrapped, or None.");
  m.def(
      "ends_of_graph",
      [](std::vector<at::Tensor> tensors) {
        add_ends_of_graph(tensors);
        return tensors;
      },
      py::arg("tensors"),
      "The tensors, those that transforms of torch.func have wrapped in them, and their tangents.");
  m.def(
      "count_registration",
      [](const py::object&, const py::object&, const py::object&) { ++tree_watch().registrations; },
      "The hook for torch.nn.modules.module.register_module_{module,parameter,buffer}_registration_hook.");
}
