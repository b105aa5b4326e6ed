#include "bindings/wrapped_parameters.hpp"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "faults/errors.hpp"

namespace osdp::bindings {
namespace {

namespace py = pybind11;
namespace rt = osdp::runtime;
using torch::autograd::variable_list;

// Objects that may be released by a thread without the GIL.
std::shared_ptr<py::object> held(py::object object) {
  return {new py::object(std::move(object)), [](py::object* p) {
            if (!Py_IsInitialized()) return;
            const py::gil_scoped_acquire gil;
            delete p;
          }};
}

// The grad_fn of a wrapper: its DTensor gradient becomes the plain gradient of the part that this rank holds.
// Runs as soon as the gradient is complete, like the AccumulateGrad node behind it, which has the same
// sequence number.
class LocalGradient final : public torch::autograd::Node {
 public:
  // `placements`: of the parameter. `convert`: the local part of a gradient in other placements, or still in
  // flight.
  LocalGradient(std::string parameter, py::object placements, py::object convert)
      : Node(std::numeric_limits<uint64_t>::max()),
        parameter_(std::move(parameter)),
        placements_(held(std::move(placements))),
        convert_(held(std::move(convert))) {}

  variable_list apply(variable_list&& gradients) override {
    at::Tensor gradient = std::move(gradients.at(0));
    gradients.clear();
    if (!gradient.defined()) return {at::Tensor()};
    OSDP_CHECK(!gradient.requires_grad(), Sharding,
               "OSDP: backward(create_graph=True) needs a differentiable gradient of parameter '", parameter_,
               "', but the mean over ranks is not differentiable. Compute the first gradient with "
               "torch.autograd.grad(output, input, create_graph=True), of an input or activation.");
    const py::gil_scoped_acquire gil;
    return {local_part(std::move(gradient))};
  }

  std::string name() const override { return "OsdpLocalGradient"; }

 private:
  at::Tensor local_part(at::Tensor gradient) const {
    const auto wrapper = py::reinterpret_steal<py::object>(THPVariable_Wrap(gradient));
    gradient.reset();  // the last reference is the wrapper's: what it wraps is then the gradient's alone
    const py::object local = py::getattr(wrapper, "_local_tensor", py::none());
    const bool plain = Py_TYPE(local.ptr()) == reinterpret_cast<PyTypeObject*>(THPVariableClass);
    if (plain && py::object(wrapper.attr("_spec").attr("placements")).equal(*placements_))
      return THPVariable_Unpack(local.ptr());
    return (*convert_)(wrapper).cast<at::Tensor>();
  }

  const std::string parameter_;
  const std::shared_ptr<py::object> placements_, convert_;
};

// Versions of torch differ in the kind of pointer that holds a node.
template <class T>
struct Made;
template <>
struct Made<std::shared_ptr<torch::autograd::Node>> {
  template <class... Args>
  static std::shared_ptr<torch::autograd::Node> of(Args&&... args) {
    return std::make_shared<LocalGradient>(std::forward<Args>(args)...);
  }
};
template <>
struct Made<c10::intrusive_ptr<torch::autograd::Node>> {
  template <class... Args>
  static c10::intrusive_ptr<torch::autograd::Node> of(Args&&... args) {
    return c10::make_intrusive<LocalGradient>(std::forward<Args>(args)...);
  }
};

// Where a module finds a parameter: parameters[key] of the module that owns it.
struct Home {
  py::dict parameters;
  py::object key, parameter, wrapper;
};

// What a script has put there since stays.
void place(const std::vector<Home>& homes, bool wrapped) {
  for (const Home& h : homes) {
    const auto& [now, next] = wrapped ? std::tie(h.parameter, h.wrapper) : std::tie(h.wrapper, h.parameter);
    if (PyDict_GetItem(h.parameters.ptr(), h.key.ptr()) != now.ptr()) continue;
    if (PyDict_SetItem(h.parameters.ptr(), h.key.ptr(), next.ptr()) != 0) throw py::error_already_set();
  }
}

// Index, inner tensor, wrapper, its placements, convert, homes (parameters, key).
using Given = std::tuple<int64_t, at::Tensor, py::object, py::object, py::object,
                         std::vector<std::pair<py::dict, py::object>>>;

void wrap_parameters(rt::Runtime& runtime, const std::vector<Given>& given) {
  std::vector<rt::Wrapped> wrapped;
  auto* homes = new std::vector<Home>;
  const std::shared_ptr<std::vector<Home>> kept(homes, [](std::vector<Home>* p) {
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire gil;
    delete p;
  });
  for (const auto& [index, inner, wrapper, placements, convert, places] : given) {
    rt::Parameter& param = runtime.parameter(index);
    wrapped.push_back({&param, inner, THPVariable_Unpack(wrapper.ptr()),
                       Made<rt::Parameter::Node>::of(param.name(), placements, convert)});
    for (const auto& [parameters, key] : places)
      homes->push_back({parameters, key, parameters[key], wrapper});
  }
  runtime.wrapped_parameters().set(std::move(wrapped), [kept](bool show) {
    const py::gil_scoped_acquire gil;
    place(*kept, show);
  });
}

void on_pass(rt::Runtime& runtime, py::object place) {
  runtime.wrapped_parameters().on_pass([place = held(std::move(place))](bool begins) {
    const py::gil_scoped_acquire gil;
    (*place)(begins);
  });
}

}  // namespace

void bind_wrapped_parameters(py::class_<rt::Runtime, std::shared_ptr<rt::Runtime>>& type) {
  type.def("wrap_parameters", &wrap_parameters, py::arg("given"),
           "From now on modules find wrappers in the place of parameters during passes: Note [Parameters of "
           "tensor "
           "parallelism]. For each: index, the inner tensor, the wrapper, its placements, a function that "
           "gives the "
           "local part of a gradient in other placements, and the places (parameters, key).");
  type.def("on_pass", &on_pass, py::arg("place"),
           "From now on `place` is called with True when a pass has shown its parameters in full, and with "
           "False when they show this rank's part again.");
  type.def_static(
      "share_version",
      [](const at::Tensor& tensor, const at::Tensor& source) {
        torch::autograd::impl::set_version_counter(tensor, torch::autograd::impl::version_counter(source));
      },
      py::arg("tensor"), py::arg("source"),
      "Writes to either count as writes to both: torch counts those to a wrapper of a tensor as the "
      "wrapper's.");
}

}  // namespace osdp::bindings
