// Bindings of csrc/runtime: a Runtime, the module hooks that drive it, the memory meter.
#include <ATen/core/Tensor.h>
#include <pybind11/chrono.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <unordered_set>

#include "comm/c10d.hpp"
#include "comm/ending.hpp"
#include "comm/parts.hpp"
#include "comm/transports/shared_memory.hpp"
#include "faults/errors.hpp"
#include "faults/heartbeat.hpp"
#include "faults/process.hpp"
#include "runtime/owners.hpp"
#include "runtime/runtime.hpp"
#include "runtime/store/memory_meter.hpp"
#include "runtime/total_norm.hpp"

namespace py = pybind11;
namespace comm = osdp::comm;
namespace faults = osdp::faults;
namespace rt = osdp::runtime;

namespace {

// Collects the tensors in a module's inputs or outputs: in tuples, lists, dicts, dataclasses and any object's
// attributes, however nested. An object is visited once; modules, types and callables are skipped.
class Tensors {
 public:
  std::vector<at::Tensor> found;

  void visit(py::handle value, int depth = 0) {
    if (value.is_none() || depth > kDeepest) return;
    PyObject* o = value.ptr();
    if (THPVariable_Check(o)) {
      found.push_back(THPVariable_Unpack(o));
    } else if (PyTuple_Check(o) || PyList_Check(o)) {
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

// See Note [A module tree that changes] in module_tree.py. `registrations` counts modules, parameters and
// named buffers that were registered anywhere in this process; `look` compares a model's tree with its
// runtime's parameters. Both are protected by the GIL.
struct TreeWatch {
  uint64_t registrations = 0;
  py::object look;
};
TreeWatch& tree_watch() {
  static auto* watch = new TreeWatch;  // never destroyed: Python may be finalized by then
  return *watch;
}
constexpr uint64_t kFirstLooks = 3, kLookEvery = 100;

// The entry in which a module finds a parameter: torch.func.functional_call puts other tensors there during a
// call.
struct Held {
  py::dict parameters;  // of the module that owns it
  py::object leaf;
  py::object parameter;
  int64_t index;

  // The tensor that replaces the parameter; undefined if none does.
  at::Tensor other() const {
    PyObject* found = PyDict_GetItem(parameters.ptr(), leaf.ptr());
    const bool is_other = found && found != parameter.ptr() && THPVariable_Check(found);
    return is_other ? THPVariable_Unpack(found) : at::Tensor();
  }
};

// The object that a module's hooks call. It keeps the runtime alive as long as the hooks exist.
struct CallHook {
  std::shared_ptr<rt::Runtime> runtime;
  rt::Call* call;
  bool warned = false;
  std::vector<Held> held;   // parameters that the call gathers
  std::vector<Held> whole;  // for the model's call: parameters that every rank holds in full

  void before(const py::object&, const py::tuple& args, const py::dict& kwargs) {
    for (const Held& h : held) check_other(h);
    if (!whole.empty() && in_transform())
      for (const Held& h : whole) check_other(h);
    if (!runtime->in_pass()) look_at_tree();
    Tensors inputs;
    if (call->root && !warned && runtime->autocast_copies()) warn_of_autocast();
    if (rt::ForwardPass::wants_inputs(*call)) {
      inputs.visit(args);
      inputs.visit(kwargs);
    }
    py::gil_scoped_release no_gil;
    runtime->forward().begin_call(*call, inputs.found);
  }

  // After an exception in the call, `output` is None (the hook is registered with always_call).
  void after(const py::object&, const py::tuple&, const py::dict&, const py::object& output) const {
    Tensors outputs;
    outputs.visit(output);
    const bool failed = output.is_none() && PyErr_Occurred() == nullptr && call_failed();
    if (failed) {
      retype();
      runtime->backward().note_exception(exception_text());
    }
    {
      py::gil_scoped_release no_gil;
      runtime->forward().end_call(*call, outputs.found, failed);
    }
    if (!failed && runtime->tree_seen != tree_watch().registrations && !runtime->in_pass())
      tree_watch().look(runtime, "forward");
  }

  // Whether the forward about to run belongs to the call that `before` has begun.
  bool begins_forward() const { return runtime->forward().begins_forward(*call); }

 private:
  void look_at_tree() const {
    const bool due =
        call->root && (runtime->root_calls++ < kFirstLooks || runtime->root_calls % kLookEvery == 0);
    if (runtime->tree_seen != tree_watch().registrations)
      tree_watch().look(runtime, "registered");
    else if (due)
      tree_watch().look(runtime, "");
  }

  void warn_of_autocast() {
    warned = true;
    const char* what =
        "OSDP: torch.autocast copies every weight to low precision and keeps the copies for backward, beside "
        "the gathered fp32 ones: gradients are right, memory is not saved and all bytes travel. Use "
        "precision='bf16' in osdp.search, or fully_shard(..., mixed_precision=osdp.MixedPrecision(...)).";
    if (PyErr_WarnEx(PyExc_UserWarning, what, 1) != 0) throw py::error_already_set();
  }

  static bool in_transform() {
    return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
  }

  static bool is_differentiated(const at::Tensor& t) {
    const auto functorch = py::module_::import("torch._C").attr("_functorch");
    return py::hasattr(functorch, "is_gradtrackingtensor") &&
           functorch.attr("is_gradtrackingtensor")(t).cast<bool>();
  }

  void check_other(const Held& h) const {
    const at::Tensor other = h.other();
    if (!other.defined()) return;
    const rt::Parameter& p = runtime->parameter(h.index);
    OSDP_CHECK(other.sizes() == p.full_sizes(), Sharding, "OSDP: parameter '", p.name(),
               "' is replaced by a tensor ", other.sizes(),
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

  // Note [Errors of torch's own class]
  // An error thrown deep inside torch, such as an access to a detached storage, reaches Python as a
  // RuntimeError even if its text is ours. A failed call of a module runs its hooks and then raises the
  // exception being handled, so the hook replaces that exception by one of our classes. For backward see
  // osdp/sharding/torch_patches/autograd_errors.py.
  static void retype() {
    const py::object error = exception();
    if (reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())) != PyExc_RuntimeError) return;
    const py::object typed =
        py::module_::import("osdp.sharding.torch_patches.autograd_errors").attr("typed")(error);
    if (!typed.is_none()) PyErr_SetHandledException(typed.ptr());
  }

  // The hook runs inside an `except` block of nn.Module's call, so this is the exception being handled.
  static py::object exception() {
    PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
    PyErr_GetExcInfo(&type, &value, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value ? py::reinterpret_steal<py::object>(value) : py::none();
  }
  static bool call_failed() { return !exception().is_none(); }
  static std::string exception_text() {
    const py::object error = exception();
    std::string text = Py_TYPE(error.ptr())->tp_name;
    try {
      text += ": " + std::string(py::str(error));
    } catch (const py::error_already_set&) {  // its __str__ raised: only the name is used
    }
    return text;
  }
};

// Note [Copies of a sharded model]
// A copy would share the original's hooks, and with them its runtime. copy.deepcopy, pickle and torch.save of
// a module all reach its hooks, which refuse.
[[noreturn]] void refuse_copy() {
  faults::throw_error(
      faults::ErrorKind::Sharding,
      "a sharded model cannot be copied or pickled. Copy it before fully_shard and shard both; "
      "save it with osdp.save(model, optimizer, directory) or torch.save(model.state_dict()).");
}

// The collectives of a group, executed on its lane. `group` must be one that only this package uses.
class LaneCollectives {
 public:
  LaneCollectives(const std::string& group, const at::Device& device)
      : lane_(comm::Lane::of(group, device)),
        collectives_(comm::Collectives::over(*lane_, group, device)),
        device_(device) {}

  void all_gather(const comm::Tensors& outputs, const comm::Tensors& inputs, const std::string& label) const {
    run(label, outputs, [&] { collectives_->all_gather(outputs, inputs); });
  }
  void reduce_scatter_mean(const comm::Tensors& outputs, const comm::Tensors& inputs) const {
    run("reduce-scatter", outputs, [&] { collectives_->reduce_scatter_mean(outputs, inputs); });
  }
  void all_reduce_mean(const comm::Tensors& tensors) const {
    run("all-reduce", tensors, [&] { collectives_->all_reduce_mean(tensors); });
  }
  void broadcast(const comm::Tensors& tensors) const {
    run("broadcast", tensors, [&] { collectives_->broadcast(tensors); });
  }
  // Every rank's bytes, in rank order. `label` names the purpose and must be equal on all ranks.
  py::list all_bytes(const std::string& label, const std::string& mine) const {
    std::vector<std::string> all;
    {
      py::gil_scoped_release no_gil;
      lane_->submit(faults::task_name(label), [&] { all = collectives_->all_texts(mine, device_); }).wait();
    }
    py::list result;
    for (const std::string& text : all) result.append(py::bytes(text));
    return result;
  }
  // Does not wait: the caller may continue to compute.
  comm::Work submit_all_reduce_mean(const comm::Tensors& tensors) const {
    return lane_->submit(named("all-reduce", tensors), [collectives = collectives_, tensors] {
      collectives->all_reduce_mean(tensors);
      for (const at::Tensor& tensor : tensors) comm::Lane::keep(tensor);
    });
  }
  std::string transport() const { return collectives_->transport(); }
  bool has_memory() const { return collectives_->has_memory(device_); }

 private:
  static faults::TaskNamePtr named(const std::string& label, const comm::Tensors& tensors) {
    faults::Digest sizes;
    for (const at::Tensor& tensor : tensors) sizes.add(uint64_t{tensor.nbytes()});
    return faults::task_name(label, 0, "", sizes.value());
  }
  void run(const std::string& label, const comm::Tensors& tensors, comm::Lane::Task task) const {
    lane_->submit(named(label, tensors), std::move(task)).wait();
  }

  std::shared_ptr<comm::Lane> lane_;
  std::shared_ptr<comm::Collectives> collectives_;
  at::Device device_;
};

using RuntimePtr = std::shared_ptr<rt::Runtime>;
using Release = py::call_guard<py::gil_scoped_release>;

RuntimePtr make_runtime(const std::string& group, const at::Device& device, std::vector<rt::ParamSpec> params,
                        std::vector<rt::UnitSpec> units, int64_t model, const std::string& shard_group,
                        const std::string& replicate_group, bool backend_memory,
                        const std::string& reductions_group, const std::string& shard_reductions_group) {
  const rt::Groups groups{group, shard_group, replicate_group, reductions_group, shard_reductions_group};
  auto runtime = std::make_shared<rt::Runtime>(groups, device, std::move(params), std::move(units), model,
                                               backend_memory);
  runtime->install();
  return runtime;
}

py::dict statistics(const rt::Runtime& runtime) {
  const rt::Statistics s = runtime.statistics();
  py::dict result;
  result["gathers"] = s.gathers;
  result["gathered_bytes"] = s.gathered_bytes;
  result["prefetches"] = s.prefetches;
  result["reductions"] = s.reductions;
  result["reduced_bytes"] = s.reduced_bytes;
  result["sent_bytes"] = s.sent_bytes;
  return result;
}

}  // namespace

void bind_runtime(py::module_& m) {
  // Also bound in osdp._search, which does not share types with this module.
  py::enum_<osdp::Mode> modes(m, "Mode", py::module_local());
  for (const osdp::ModeTraits& mode : osdp::kModes) modes.value(mode.name, mode.mode);

  py::class_<rt::SplitSpec>(m, "SplitSpec",
                            "granularity slices along 'out' (0) or 'in' (1), the last `sharded` sharded")
      .def(py::init([](int64_t granularity, int64_t sharded, int64_t dim) {
             return rt::SplitSpec{granularity, sharded, static_cast<osdp::ops::SplitDim>(dim)};
           }),
           py::arg("granularity"), py::arg("sharded"), py::arg("dim"));

  py::class_<rt::ParamSpec>(m, "ParamSpec",
                            "A parameter's name, its tensor (full, equal on all ranks), its split, and the "
                            "dtypes it is computed and "
                            "its gradient reduced in (None: its own). With full_sizes its value comes later: "
                            "the runtime makes memory "
                            "for this rank's part, in the host's memory with offload.")
      .def(py::init([](std::string name, at::Tensor tensor, std::optional<rt::SplitSpec> split,
                       std::optional<std::vector<int64_t>> full_sizes, std::optional<at::ScalarType> compute,
                       std::optional<at::ScalarType> reduce, bool offload) {
             return rt::ParamSpec{std::move(name),       std::move(tensor), split,
                                  std::move(full_sizes), {compute, reduce}, offload};
           }),
           py::arg("name"), py::arg("tensor"), py::arg("split") = std::nullopt,
           py::arg("full_sizes") = std::nullopt, py::arg("compute") = std::nullopt,
           py::arg("reduce") = std::nullopt, py::arg("offload") = false);

  py::class_<rt::UnitSpec>(m, "UnitSpec", "Indices of parameters gathered and reduced together")
      .def(py::init([](std::string name, osdp::Mode mode, std::vector<int64_t> params) {
             return rt::UnitSpec{std::move(name), mode, std::move(params)};
           }),
           py::arg("name"), py::arg("mode"), py::arg("params"));

  py::class_<rt::Piece>(m, "Piece", "A block of the full tensor and where it lies in the local one")
      .def_property_readonly("global_offsets",
                             [](const rt::Piece& p) { return py::tuple(py::cast(p.offsets)); })
      .def_property_readonly("sizes", [](const rt::Piece& p) { return py::tuple(py::cast(p.sizes)); })
      .def_readonly("replicated", &rt::Piece::replicated)
      .def(
          "view",
          [](const rt::Piece& piece, const at::Tensor& local) {
            return local.dim() == 0 ? local
                                    : local.narrow(piece.local_dim, piece.local_begin, piece.local_count);
          },
          py::arg("local"), "This piece of a local-shaped tensor, as a view.");

  py::class_<CallHook>(m, "CallHook", "Forward hooks of one module")
      .def("before", &CallHook::before)
      .def("after", &CallHook::after)
      .def("begins_forward", &CallHook::begins_forward)
      .def(
          "hold",
          [](CallHook& hook, py::dict parameters, py::object leaf, py::object parameter, int64_t index) {
            auto& list = hook.runtime->parameter(index).whole() ? hook.whole : hook.held;
            list.push_back({std::move(parameters), std::move(leaf), std::move(parameter), index});
          },
          py::arg("parameters"), py::arg("leaf"), py::arg("parameter"), py::arg("index"),
          "Where the module that owns it has a parameter: parameters[leaf]")
      .def("__deepcopy__", [](const CallHook&, const py::object&) { refuse_copy(); })
      .def("__reduce_ex__", [](const CallHook&, int) -> py::tuple { refuse_copy(); });

  py::class_<rt::Runtime, RuntimePtr>(m, "Runtime",
                                      "A training step of one sharded model; see csrc/runtime/runtime.hpp")
      .def(py::init(&make_runtime), py::arg("group"), py::arg("device"), py::arg("params"), py::arg("units"),
           py::arg("model"), py::arg("shard_group") = "", py::arg("replicate_group") = "",
           py::arg("backend_memory") = false, py::arg("reductions_group") = "",
           py::arg("shard_reductions_group") = "", Release())
      .def_property_readonly("rank", &rt::Runtime::rank)
      .def_property_readonly("world", &rt::Runtime::world)
      .def(
          "add_call",
          [](const RuntimePtr& runtime, std::string module, const std::vector<int64_t>& params, bool root,
             bool hold, bool method) {
            return CallHook{.runtime = runtime,
                            .call = runtime->add_call(std::move(module), params, root, hold, method)};
          },
          py::arg("module"), py::arg("params"), py::arg("root"), py::arg("hold"), py::arg("method") = false)
      .def("uninstall", &rt::Runtime::uninstall,
           "fully_shard failed and the model is put back: its gradients are no longer this runtime's")
      .def(
          "source_of", [](rt::Runtime& runtime, int64_t param) { return runtime.slices().source_of(param); },
          py::arg("param"))
      .def("join", &rt::Runtime::join, py::arg("label"), py::arg("params"), Release())
      .def("set_absent", &rt::Runtime::set_absent, py::arg("params"))
      .def(
          "saw_tree", [](rt::Runtime& runtime) { runtime.tree_seen = tree_watch().registrations; },
          "The model's tree was compared after all registrations until now")
      .def_property_readonly(
          "tree_changed",
          [](const rt::Runtime& runtime) { return runtime.tree_seen != tree_watch().registrations; })
      .def_property_readonly("summoned",
                             [](rt::Runtime& runtime) { return runtime.full_params().summoned(); })
      .def_property_readonly("in_pass", &rt::Runtime::in_pass, "Within a call or a backward")
      .def_property_readonly(
          "step_seconds", [](rt::Runtime& runtime) { return runtime.forward().step_seconds(); },
          "Seconds between the beginnings of the last training forwards")
      .def_property(
          "prefetch", [](rt::Runtime& runtime) { return runtime.units().prefetch(); },
          [](rt::Runtime& runtime, size_t units) { runtime.units().set_prefetch(units); })
      .def_property("sync", &rt::Runtime::sync, &rt::Runtime::set_sync)
      .def_property("part", &rt::Runtime::part, &rt::Runtime::set_part)
      .def(
          "unreduced",
          [](rt::Runtime& runtime) -> std::optional<int64_t> {
            const rt::Parameter* found = runtime.backward().unreduced();
            return found ? std::optional(static_cast<int64_t>(found->index())) : std::nullopt;
          },
          "The first parameter whose gradient no_sync has kept and nothing has reduced or dropped since")
      .def(
          "pieces", [](rt::Runtime& runtime, int64_t param) { return runtime.parameter(param).pieces(); },
          py::arg("param"))
      .def(
          "full_shape",
          [](rt::Runtime& runtime, int64_t param) { return runtime.parameter(param).full_sizes().vec(); },
          py::arg("param"))
      .def(
          "name", [](rt::Runtime& runtime, int64_t param) { return runtime.parameter(param).name(); },
          py::arg("param"))
      .def(
          "is_whole", [](rt::Runtime& runtime, int64_t param) { return runtime.parameter(param).whole(); },
          py::arg("param"), "Whether every rank holds all of it.")
      .def(
          "take_local",
          [](rt::Runtime& runtime, int64_t param, const at::Tensor& full) {
            const rt::Parameter& p = runtime.parameter(param);
            return p.whole() ? full : p.take_local(full);
          },
          py::arg("param"), py::arg("full"), Release())
      .def(
          "owner_of",
          [](rt::Runtime& runtime, const at::Tensor& tensor) -> std::optional<std::pair<std::string, bool>> {
            const rt::Parameter* found = runtime.full_params().owner_of(tensor);
            if (!found) return std::nullopt;
            return std::pair(found->name(), found->whole());
          },
          py::arg("tensor"), "Name of the parameter in whose memory it lies, and whether it is whole")
      .def("suspect_replicas", [](rt::Runtime& runtime) { runtime.replicas().suspect(); })
      .def(
          "gather_whole",
          [](rt::Runtime& runtime, int64_t param, const at::Tensor& local) {
            return runtime.full_params().gather(param, local);
          },
          py::arg("param"), py::arg("local"), Release())
      .def(
          "summon", [](rt::Runtime& runtime, bool with_grads) { runtime.full_params().summon(with_grads); },
          py::arg("with_grads"), Release())
      .def(
          "unsummon", [](rt::Runtime& runtime, bool writeback) { runtime.full_params().unsummon(writeback); },
          py::arg("writeback"), Release())
      .def(
          "clip_grad_norm",
          [](rt::Runtime& runtime, double max_norm, double norm_type, bool error_if_nonfinite,
             const std::vector<RuntimePtr>& parts) {
            std::vector<const rt::FullParams*> inside;
            inside.reserve(parts.size());
            for (const RuntimePtr& part : parts) inside.push_back(&part->full_params());
            return runtime.full_params().clip_grad_norm(max_norm, norm_type, error_if_nonfinite, inside);
          },
          py::arg("max_norm"), py::arg("norm_type"), py::arg("error_if_nonfinite"), py::arg("parts"),
          Release())
      .def("set_budget", &rt::Runtime::set_budget, py::arg("sentence"),
           "What the plan predicted, for the text of OutOfMemoryError")
      .def(
          "gathered_bytes", [](const rt::Runtime& runtime) { return runtime.shards().gathered_bytes(); },
          "Bytes of full tensors that exist now")
      .def(
          "copied_bytes", [](const rt::Runtime& runtime) { return runtime.shards().copied_bytes(); },
          "Bytes of NO_SHARD parameters' copies in the dtype they are computed in that exist now")
      .def("arena_bytes", &rt::Runtime::arena_bytes, "Bytes reserved to gather into")
      .def("statistics", &statistics)
      .def("reset_statistics", &rt::Runtime::reset_statistics);

  py::class_<comm::Work>(m, "Work", "The end of a task on the lane.")
      .def(
          "wait", [](const comm::Work& work) { work.wait(); }, Release())
      .def_property_readonly("done", &comm::Work::done)
      .def_property_readonly("seconds", &comm::Work::seconds,
                             "How long the task ran; 0 on accelerators, and before it is done.");
  py::class_<LaneCollectives>(
      m, "Collectives",
      "What the runtime communicates with: see csrc/comm/collectives.hpp. Each call runs on "
      "the group's lane and returns when it is done there.")
      .def(py::init<const std::string&, const at::Device&>(), py::arg("group"), py::arg("device"), Release())
      .def_property_readonly("has_memory", &LaneCollectives::has_memory,
                             "Whether the backend allocates tensors for its collectives on this device")
      .def_property_readonly("transport", &LaneCollectives::transport,
                             "What carries the bytes: 'shared memory', 'sockets' or the backend's name.")
      .def("all_gather", &LaneCollectives::all_gather, py::arg("outputs"), py::arg("inputs"),
           py::arg("label") = "all-gather", Release())
      .def("reduce_scatter_mean", &LaneCollectives::reduce_scatter_mean, py::arg("outputs"),
           py::arg("inputs"), Release())
      .def("all_reduce_mean", &LaneCollectives::all_reduce_mean, py::arg("tensors"), Release())
      .def("submit_all_reduce_mean", &LaneCollectives::submit_all_reduce_mean, py::arg("tensors"), Release(),
           "The same without waiting for it.")
      .def("all_bytes", &LaneCollectives::all_bytes, py::arg("label"), py::arg("mine"),
           "Every rank's bytes, in the order of ranks. `label` says what for, alike on all ranks.")
      .def("broadcast", &LaneCollectives::broadcast, py::arg("tensors"), Release());

  m.def(
      "owners_of",
      [](const comm::Tensors& tensors) {
        std::vector<std::optional<std::pair<RuntimePtr, int64_t>>> found;
        for (rt::Owner& owner : rt::owners_of(tensors)) {
          found.emplace_back();
          if (owner.runtime) found.back().emplace(std::move(owner.runtime), owner.param);
        }
        return found;
      },
      py::arg("tensors"),
      "Of each tensor: the sharded model and the parameter that it is, or is the gradient of; see "
      "csrc/runtime/owners.hpp.");
  m.def("norm_over_ranks", &rt::norm_over_ranks, py::arg("tensors"), py::arg("norm_type"),
        py::arg("error_if_nonfinite"), py::arg("parts"), Release(),
        "The norm of tensors as in one process, where any is a part; see csrc/runtime/total_norm.hpp.");
  m.def(
      "watch_tree", [](py::object look) { tree_watch().look = std::move(look); }, py::arg("look"),
      "look(runtime, when) is called before an outermost call (when: 'registered' or '', a look now and "
      "then) "
      "and after one in which something was registered ('forward').");
  m.def(
      "count_registration",
      [](const py::object&, const py::object&, const py::object&) { ++tree_watch().registrations; },
      "A hook for torch.nn.modules.module.register_module_..._registration_hook");
  m.def("start_heartbeat", &comm::start_heartbeat, py::arg("group"), py::arg("device"), py::arg("timeout_s"),
        Release(), "Finds out which rank died, hangs or goes another way; see csrc/faults/heartbeat.hpp.");
  m.def(
      "timeout_of",
      [](const std::string& group, const at::Device& device) {
        return comm::peers_of(c10d::resolve_process_group(group)->getBackend(device.type()))->timeout();
      },
      py::arg("group"), py::arg("device"), "Of the backend that a group has for a device.");
  m.def(
      "await_backwards",
      [] {
        for (const auto& runtime : rt::live_runtimes()) runtime->backward().await_end();
      },
      Release(),
      "After an exception in a backward: until every model is put back. See Note [A backward that ends "
      "elsewhere].");
  m.def("end_group", &comm::end_group, py::arg("group"), Release(),
        "Ends a group's heartbeat, lanes and transport; see csrc/comm/ending.hpp.");
  m.def(
      "set_place",
      [](const std::string& group, const at::Device& device, const std::string& place) {
        comm::Lane::of(group, device)->health().at(place.empty() ? nullptr : faults::interned(place));
      },
      py::arg("group"), py::arg("device"), py::arg("place"),
      "Where this rank is, for the other ranks' errors: 'osdp.save'; '' where it is nowhere in particular.");
  m.def(
      "this_process", [] { return faults::Process::here().encode(); },
      "What tells this process from all others, as a text; see csrc/faults/process.hpp.");
  m.def(
      "process_ended",
      [](const std::string& text) {
        const auto process = faults::Process::decode(text);
        return process && faults::life_of(*process) == faults::Life::Ended;
      },
      py::arg("process"), "Whether that process was on this host and has ended.");
  m.def(
      "connect_part",
      [](const std::string& part, const at::Device& device) {
        const auto lane = comm::Lane::apart(device);
        const auto collectives = comm::Collectives::over(*lane, part, device);
        if (device.is_cpu()) return;  // Collectives::over has connected the ranks
        const at::Tensor one = at::zeros({1}, device);
        lane->submit(faults::task_name("connecting the ranks"), [&] { collectives->all_reduce_sum(one); })
            .wait();
      },
      py::arg("part"), py::arg("device"), Release(),
      "Makes the transport of a group of some of a lane's ranks, by those ranks alone. Collective.");
  m.def("set_ranks_of_part", &comm::set_ranks_of_part, py::arg("group"), py::arg("ranks"),
        "Who the ranks of a line or column are among all, for errors; see csrc/comm/parts.hpp.");
  m.attr("HEARTBEAT_MARGIN_S") = faults::Heartbeat::kMargin_s;
  m.def(
      "shutdown",
      [](const std::string& last_words) {
        faults::Heartbeat::shutdown(last_words);
        comm::Lane::shutdown();
      },
      py::arg("last_words") = "", Release(),
      "Ends the communication threads. `last_words`: the exception that ends this process, for the other "
      "ranks.");
  m.def("host_identity", &comm::host_identity,
        "Machine, boot, network namespace and name of this host: the same for ranks that share it");
  m.def("memory_meter_install", &rt::memory_meter_install);
  m.def("memory_meter_installed", &rt::memory_meter_installed);
  m.def("memory_live_bytes", &rt::memory_live_bytes);
  m.def("memory_peak_bytes", &rt::memory_peak_bytes);
  m.def("memory_reset_peak", &rt::memory_reset_peak);
}
