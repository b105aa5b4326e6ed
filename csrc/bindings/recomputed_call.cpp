// call_recomputed: the call of a recomputed block, with hooks for saved tensors that run no Python code.
// Note [Saved by a second forward] in runtime/step/recomputed_call.hpp says how they work.
#include "runtime/step/recomputed_call.hpp"

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <utility>

#include "bindings/call_arguments.hpp"
#include "runtime/step/graph_task.hpp"

namespace osdp::bindings {
namespace {

namespace py = pybind11;
using runtime::RecomputedCall;

// What ends a second forward. An Exception: for others nn.Module's call does not run `always_call` hooks.
PyObject* everything_saved = nullptr;
// torch._C._dynamo.eval_frame.set_eval_frame
PyObject* set_eval_frame = nullptr;

// Dynamo compiles nothing on this thread while this exists: what the first forward has compiled is compiled
// already, and only the same graphs save the same tensors.
class WithoutDynamo {
 public:
  WithoutDynamo() : before_(py::reinterpret_steal<py::object>(PyObject_CallOneArg(set_eval_frame, Py_None))) {
    if (!before_) throw py::error_already_set();
  }
  WithoutDynamo(const WithoutDynamo&) = delete;
  WithoutDynamo& operator=(const WithoutDynamo&) = delete;
  ~WithoutDynamo() {
    const py::error_scope pending;
    Py_XDECREF(PyObject_CallOneArg(set_eval_frame, before_.ptr()));
  }

 private:
  py::object before_;
};

// A call and what its second forwards need. The hooks and the places hold it, so it lives as long as
// autograd's nodes do that saved something in it.
struct Call : std::enable_shared_from_this<Call> {
  Call(std::string name, py::object again, const py::tuple& args, const py::dict& kwargs)
      : saved(std::move(name)), again(std::move(again)), arguments(args, kwargs) {}

  RecomputedCall saved;
  py::object again;  // runs the second forward: again(args, kwargs)
  CallArguments arguments;
};

struct Place {
  std::shared_ptr<Call> call;
  size_t number;

  Place(std::shared_ptr<Call> call, size_t number) : call(std::move(call)), number(number) {}
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() { call->saved.release(number); }
};

// What the hooks of a second forward save into.
struct Second {
  std::shared_ptr<Call> call;
  RecomputedCall::SecondForward& into;
};

// Capsules are Python's objects for C pointers; these own what they point to. Their type stands for the name,
// by which Python would tell them apart: nothing but the functions below receives them.
template <typename T, typename... Parts>
py::object owned(Parts&&... parts) {
  return py::capsule(new T{std::forward<Parts>(parts)...}, [](void* p) { delete static_cast<T*>(p); });
}
template <typename T>
T& owned_by(PyObject* capsule) {
  return *static_cast<T*>(PyCapsule_GetPointer(capsule, nullptr));
}

template <typename Function>
PyObject* translated(const Function& function) {
  try {
    return function();
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

// The hooks that autograd calls for the tensors that it saves and reads on this thread, while this exists.
class Hooks {
 public:
  Hooks(PyMethodDef& pack, PyMethodDef& unpack, const py::object& self) {
    at::SavedTensorDefaultHooks::lazy_initialize();
    at::SavedTensorDefaultHooks::push_hooks({function(pack, self), getPyInterpreter()},
                                            {function(unpack, self), getPyInterpreter()});
  }
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;
  ~Hooks() { at::SavedTensorDefaultHooks::pop_hooks(); }

 private:
  static PyObject* function(PyMethodDef& definition, const py::object& self) {
    PyObject* made = PyCFunction_New(&definition, self.ptr());
    if (!made) throw py::error_already_set();
    return made;
  }
};

// A backward that asks for a tensor. The backwards of a torch.utils.checkpoint.GraphExecGroup recompute once,
// so they count as one; a question from outside of a backward, as one of its own.
struct Backward {
  int64_t id;  // of its graph task, or below -1
  bool over;   // once it is answered
};
Backward backward_that_asks() {
  static int64_t last = -1;
  if (const auto& entered = c10::AutogradState::get_tls_state().get_graph_exec_group()) {
    const auto group = py::reinterpret_borrow<py::object>(entered->ptr(getPyInterpreter()));
    if (!py::hasattr(group, "_osdp_backward")) group.attr("_osdp_backward") = --last;
    return {group.attr("_osdp_backward").cast<int64_t>(), false};
  }
  const int task = runtime::current_graph_task();
  return task == -1 ? Backward{--last, true} : Backward{task, false};
}

PyObject* save_again(PyObject* self, PyObject* tensor) {
  return translated([&]() -> PyObject* {
    const Second& second = owned_by<Second>(self);
    const at::Tensor& saved = THPVariable_Unpack(tensor);
    const at::Tensor values = saved.requires_grad() ? saved.detach() : saved;
    if (second.call->saved.save_again(second.into, values)) {
      PyErr_SetNone(everything_saved);
      return nullptr;
    }
    return THPVariable_Wrap(values);  // for a backward inside the second forward
  });
}
PyObject* read_again(PyObject*, PyObject* tensor) { return Py_NewRef(tensor); }
PyMethodDef kSaveAgain{"save_again", &save_again, METH_O, nullptr};
PyMethodDef kReadAgain{"read_again", &read_again, METH_O, nullptr};

void run_second_forward(Call& call, RecomputedCall::SecondForward& second) {
  const py::object args = call.arguments.args(), kwargs = call.arguments.kwargs();
  {
    const Hooks hooks(kSaveAgain, kReadAgain, owned<Second>(call.shared_from_this(), second));
    const at::AutoGradMode grad(true);
    const WithoutDynamo eager;
    const auto result = py::reinterpret_steal<py::object>(
        PyObject_CallFunctionObjArgs(call.again.ptr(), args.ptr(), kwargs.ptr(), nullptr));
    if (!result) {
      if (!second.ended || !PyErr_ExceptionMatches(everything_saved)) throw py::error_already_set();
      PyErr_Clear();  // and with it the tensors that the forward's frames hold
    }
  }
  call.saved.end(second);
}

at::Tensor read(const std::shared_ptr<Call> call, size_t place) {
  const Backward backward = backward_that_asks();
  if (auto* second = call->saved.begin(backward.id)) {
    try {
      run_second_forward(*call, *second);
    } catch (...) {
      call->saved.forget(backward.id);
      throw;
    }
  }
  at::Tensor tensor = call->saved.take(place, backward.id);
  if (backward.over) call->saved.forget(backward.id);
  return tensor;
}

PyObject* save(PyObject* self, PyObject* tensor) {
  return translated([&] {
    const auto& call = owned_by<std::shared_ptr<Call>>(self);
    const size_t place = call->saved.save(THPVariable_Unpack(tensor));
    return owned<Place>(call, place).release().ptr();
  });
}
PyObject* read_hook(PyObject*, PyObject* place) {
  return translated([&] {
    const Place& asked = owned_by<Place>(place);
    return THPVariable_Wrap(read(asked.call, asked.number));
  });
}
PyMethodDef kSave{"save", &save, METH_O, nullptr};
PyMethodDef kRead{"read", &read_hook, METH_O, nullptr};

py::object call_recomputed(std::string name, const py::object& forward, py::object again,
                           const py::tuple& args, const py::dict& kwargs) {
  const auto call = std::make_shared<Call>(std::move(name), std::move(again), args, kwargs);
  const Hooks hooks(kSave, kRead, owned<std::shared_ptr<Call>>(call));
  auto result = py::reinterpret_steal<py::object>(PyObject_Call(forward.ptr(), args.ptr(), kwargs.ptr()));
  if (!result) throw py::error_already_set();
  return result;
}

}  // namespace
}  // namespace osdp::bindings

void bind_recomputed_call(pybind11::module_& m) {
  using namespace osdp::bindings;
  everything_saved = PyErr_NewException("osdp._C.EverythingSaved", PyExc_Exception, nullptr);
  set_eval_frame =
      py::object(py::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame")).release().ptr();
  m.def(
      "call_recomputed", &call_recomputed, py::arg("name"), py::arg("forward"), py::arg("again"),
      py::arg("args"), py::arg("kwargs"),
      "forward(*args, **kwargs), whose tensors for backward are not saved: a backward that needs them calls "
      "again(args, kwargs), which calls forward once more. An exception ends that call once all are there.");
}
