// Bindings of csrc/ops: slice sources written in Python, and the callables that stand in for the forward of
// nn.Linear, nn.Embedding and convolutions.
#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <sstream>

#include "bindings/held.hpp"
#include "faults/errors.hpp"
#include "ops/slice_source.hpp"
#include "ops/split_convolution.hpp"
#include "ops/split_embedding.hpp"
#include "ops/split_linear.hpp"
#include "ops/split_shape.hpp"

namespace py = pybind11;

namespace {

namespace ops = osdp::ops;

// Any Python object with acquire(index, next) -> Tensor, release(index) and put_grad(index, grad).
class PythonSource final : public ops::SliceSource {
 public:
  explicit PythonSource(py::object object) : object_(std::move(object)) {}
  ~PythonSource() override {
    if (!Py_IsInitialized()) {
      object_.release();  // the interpreter is gone, and the object with it
      return;
    }
    const py::gil_scoped_acquire gil;
    object_ = py::object();
  }

  at::Tensor acquire(int64_t index, int64_t next) override {
    const py::gil_scoped_acquire gil;
    return object_.attr("acquire")(index, next).cast<at::Tensor>();
  }

  void release(int64_t index) noexcept override {
    const py::gil_scoped_acquire gil;
    try {
      // Often called while a Python exception is propagating, which must be preserved.
      const py::error_scope pending;
      try {
        object_.attr("release")(index);
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("osdp slice source: release");
      }
    } catch (...) {
    }
  }

  void put_grad(int64_t index, at::Tensor grad) override {
    const py::gil_scoped_acquire gil;
    object_.attr("put_grad")(index, std::move(grad));
  }

 private:
  py::object object_;
};

int64_t parse_split(const py::object& split) {
  if (py::isinstance<py::str>(split)) {
    const auto name = split.cast<std::string>();
    if (name == "out") return static_cast<int64_t>(ops::SplitDim::Out);
    if (name == "in") return static_cast<int64_t>(ops::SplitDim::In);
    throw py::value_error("osdp: split is '" + name + "'; it must be 'out' or 'in'");
  }
  return split.cast<int64_t>();
}

void refuse_transforms(const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode), op,
      " cannot be transformed by torch.func; give the operator granularity 1 in the plan");
}

// Described as any other: a description does not know the layouts of what modules are given.
void refuse_layouts(const char* op, const at::Tensor& input) {
  OSDP_CHECK(input.layout() == at::kStrided && !input.is_nested(), Sharding, "OSDP: ", op,
             " was given a sparse or nested tensor (layout ", input.layout(),
             "), which slices cannot be computed with: give the operator granularity 1 in the plan.");
}

// `register_hook` after fully_shard; before it, the weight is never described as one that can be in slices.
void refuse_hooks(const at::Tensor& weight) {
  if (!at::GradMode::is_enabled() || !weight.requires_grad() || torch::autograd::impl::hooks(weight).empty())
    return;
  const py::object hooks = py::cast(weight).attr("_backward_hooks");
  OSDP_CHECK(hooks.is_none() || py::len(hooks) == 0, Sharding,
             "OSDP: a weight that is computed in slices (this rank's part of it is ", weight.sizes(),
             ") has a hook on its gradient (register_hook), which is never there as a whole. Give the "
             "operator granularity 1 in the plan, or use register_post_accumulate_grad_hook, which sees this "
             "rank's part of the mean.");
}

// What torch.func.functional_call has put in the place of a parameter of the module for this call.
// `parameters`: the module's `_parameters`, or None.
struct Replaceable {
  std::optional<osdp::bindings::Held> held;

  Replaceable(const py::object& parameters, const char* leaf) {
    if (parameters.is_none()) return;
    const py::dict entries(parameters);
    if (entries.contains(leaf)) held = osdp::bindings::Held{entries, py::str(leaf), entries[leaf]};
  }

  at::Tensor other() const { return held ? held->other() : at::Tensor(); }

  // As `other`, of a weight, which slices would not see.
  at::Tensor whole(at::IntArrayRef sizes) const {
    const at::Tensor found = other();
    OSDP_CHECK(!found.defined() || found.sizes() == sizes, Sharding,
               "OSDP: a weight that is computed in slices is replaced by a tensor ", found.sizes(),
               " for this call (torch.func.functional_call?), and in full it is ", sizes,
               ". Give full tensors, as model.state_dict() has them, or the model's own parameters.");
    return found;
  }
};

// linear.forward = SplitCall(linear.weight, linear.bias, ...): the module keeps its class, name, parameters
// and hooks. Holds the Parameter objects, so it sees changes by set_data, an optimizer or load_state_dict.
// Other tensors in the module's `parameters` are seen, too: a weight that is given in full for a call has no
// slices to gather, and is used as it is.
struct SplitCall {
  at::Tensor weight;
  std::optional<at::Tensor> bias;
  int64_t out_features, in_features, granularity, split, source;
  bool transposed;
  Replaceable weight_of_call, bias_of_call;

  SplitCall(at::Tensor weight, std::optional<at::Tensor> bias, int64_t out_features, int64_t in_features,
            int64_t granularity, const py::object& split, int64_t source, bool transposed,
            const py::object& parameters)
      : weight(std::move(weight)),
        bias(std::move(bias)),
        out_features(out_features),
        in_features(in_features),
        granularity(granularity),
        split(parse_split(split)),
        source(source),
        transposed(transposed),
        weight_of_call(parameters, "weight"),
        bias_of_call(parameters, "bias") {
    (void)ops::SplitShape(out_features, in_features, granularity, this->split,
                          transposed);  // refuse now, not at the first call
  }

  at::Tensor operator()(const at::Tensor& input) const {
    const at::Tensor given = transposed ? weight_of_call.whole({in_features, out_features})
                                        : weight_of_call.whole({out_features, in_features});
    const at::Tensor other = bias_of_call.other();
    const std::optional<at::Tensor> added = other.defined() ? other : bias;
    if (!given.defined()) refuse_hooks(weight);
    const py::gil_scoped_release no_gil;
    if (given.defined()) return at::linear(input, transposed ? given.t() : given, added);
    refuse_transforms("osdp::split_linear");
    refuse_layouts("a product in slices", input);
    return ops::split_linear(input, weight, added, out_features, in_features, granularity, split, transposed,
                             source);
  }

  std::string repr() const {
    std::ostringstream out;
    out << "SplitCall(in_features=" << in_features << ", out_features=" << out_features
        << ", bias=" << (bias ? "True" : "False") << ", granularity=" << granularity << ", split='"
        << (split == 0 ? "out" : "in") << "', source=" << source << (transposed ? ", transposed=True)" : ")");
    return out.str();
  }
};

// embedding.forward = SplitLookUp(embedding.weight, ...), in the same way.
struct SplitLookUp {
  at::Tensor weight;
  int64_t rows, columns, padding_idx, granularity, split, source;
  Replaceable weight_of_call;

  SplitLookUp(at::Tensor weight, int64_t rows, int64_t columns, std::optional<int64_t> padding_idx,
              int64_t granularity, const py::object& split, int64_t source, const py::object& parameters)
      : weight(std::move(weight)),
        rows(rows),
        columns(columns),
        padding_idx(padding_idx.value_or(-1)),
        granularity(granularity),
        split(parse_split(split)),
        source(source),
        weight_of_call(parameters, "weight") {
    (void)ops::SplitShape(rows, columns, granularity, this->split);
  }

  at::Tensor operator()(const at::Tensor& input) const {
    const at::Tensor given = weight_of_call.whole({rows, columns});
    if (!given.defined()) refuse_hooks(weight);
    const py::gil_scoped_release no_gil;
    if (given.defined()) return at::embedding(given, input, padding_idx);
    refuse_transforms("osdp::split_embedding");
    refuse_layouts("a look-up in slices", input);
    return ops::split_embedding(input, weight, rows, columns, padding_idx, granularity, split, source);
  }

  std::string repr() const {
    std::ostringstream out;
    out << "SplitLookUp(rows=" << rows << ", columns=" << columns << ", granularity=" << granularity
        << ", split='" << (split == 0 ? "out" : "in") << "', source=" << source << ")";
    return out.str();
  }
};

// conv.forward = SplitConvolution(conv.weight, ...), in the same way. `pad`: what torch pads before the
// convolution (padding_mode), as torch.nn.functional.pad takes it; empty: nothing.
struct SplitConvolution {
  at::Tensor weight;
  std::optional<at::Tensor> bias;
  ops::Convolution convolution;
  std::vector<int64_t> pad;
  std::string pad_mode;
  int64_t granularity, source;
  Replaceable weight_of_call, bias_of_call;

  SplitConvolution(at::Tensor weight, std::optional<at::Tensor> bias, std::vector<int64_t> sizes,
                   std::vector<int64_t> stride, std::vector<int64_t> padding, std::vector<int64_t> dilation,
                   std::vector<int64_t> pad, std::string pad_mode, int64_t granularity, int64_t source,
                   const py::object& parameters)
      : weight(std::move(weight)),
        bias(std::move(bias)),
        convolution{std::move(sizes), std::move(stride), std::move(padding), std::move(dilation)},
        pad(std::move(pad)),
        pad_mode(std::move(pad_mode)),
        granularity(granularity),
        source(source),
        weight_of_call(parameters, "weight"),
        bias_of_call(parameters, "bias") {}

  at::Tensor operator()(const at::Tensor& input) const {
    const at::Tensor given = weight_of_call.whole(convolution.weight);
    const at::Tensor other = bias_of_call.other();
    const std::optional<at::Tensor> added = other.defined() ? other : bias;
    if (!given.defined()) refuse_hooks(weight);
    const py::gil_scoped_release no_gil;
    const auto dimensions = static_cast<int64_t>(convolution.weight.size());
    TORCH_CHECK(input.dim() == dimensions || input.dim() == dimensions - 1, "a convolution with weight ",
                at::IntArrayRef(convolution.weight), " was given an input ", input.sizes());
    const bool one = input.dim() == dimensions - 1;  // a sample without a batch
    at::Tensor x = one ? input.unsqueeze(0) : input;
    if (!pad.empty()) x = at::pad(x, pad, pad_mode);
    if (!given.defined()) refuse_transforms("osdp's convolution in slices");
    const at::Tensor y =
        given.defined()
            ? at::convolution(x, given, added, convolution.stride, convolution.padding, convolution.dilation,
                              false, std::vector<int64_t>(convolution.stride.size(), 0), 1)
            : ops::split_convolution(x, weight, added, convolution, granularity, source);
    return one ? y.squeeze(0) : y;
  }

  std::string repr() const {
    std::ostringstream out;
    out << "SplitConvolution(weight=" << at::IntArrayRef(convolution.weight)
        << ", granularity=" << granularity << ", source=" << source << ")";
    return out.str();
  }
};

}  // namespace

void bind_ops(py::module_& m) {
  m.def(
      "register_source",
      [](py::object source) {
        return ops::register_source(std::make_shared<PythonSource>(std::move(source)));
      },
      py::arg("source"),
      "Registers an object that provides the slices of a weight; returns its id. acquire(index, next) "
      "returns slice "
      "`index` (and may prefetch `next`), release(index) ends its use, put_grad(index, grad) takes its "
      "gradient.");
  m.def(
      "unregister_source", [](int64_t id) { ops::unregister_source(id); }, py::arg("id"),
      py::call_guard<py::gil_scoped_release>(), "Forgets a source. Unknown ids are ignored.");
  py::class_<SplitCall>(
      m, "SplitCall",
      "The product of an nn.Linear with weight [out_features, in_features], computed in "
      "`granularity` slices along "
      "out (split='out' or 0) or in ('in' or 1); called like nn.Linear.forward. `source`: an id from "
      "register_source, 0: the slices of `weight` itself. `transposed`: the weight is [in_features, "
      "out_features]. `parameters`: the module's `_parameters`; another weight or bias that is found there "
      "is "
      "used in its place.")
      .def(py::init<at::Tensor, std::optional<at::Tensor>, int64_t, int64_t, int64_t, const py::object&,
                    int64_t, bool, const py::object&>(),
           py::arg("weight"), py::arg("bias"), py::arg("out_features"), py::arg("in_features"),
           py::arg("granularity"), py::arg("split"), py::arg("source") = 0, py::arg("transposed") = false,
           py::arg("parameters") = py::none())
      .def("__call__", &SplitCall::operator(), py::arg("input"))
      .def("__repr__", &SplitCall::repr)
      .def_readonly("granularity", &SplitCall::granularity)
      .def_readonly("split", &SplitCall::split)
      .def_readonly("source", &SplitCall::source);
  py::class_<SplitLookUp>(
      m, "SplitLookUp",
      "The look-up of an nn.Embedding with weight [rows, columns], computed in `granularity` slices of its "
      "rows (split='out' or 0) or columns ('in' or 1); called like nn.Embedding.forward. `source` and "
      "`parameters`: as of SplitCall.")
      .def(py::init<at::Tensor, int64_t, int64_t, std::optional<int64_t>, int64_t, const py::object&, int64_t,
                    const py::object&>(),
           py::arg("weight"), py::arg("rows"), py::arg("columns"), py::arg("padding_idx"),
           py::arg("granularity"), py::arg("split"), py::arg("source") = 0,
           py::arg("parameters") = py::none())
      .def("__call__", &SplitLookUp::operator(), py::arg("input"))
      .def("__repr__", &SplitLookUp::repr)
      .def_readonly("granularity", &SplitLookUp::granularity)
      .def_readonly("split", &SplitLookUp::split)
      .def_readonly("source", &SplitLookUp::source);
  py::class_<SplitConvolution>(
      m, "SplitConvolution",
      "The call of a convolution with weight `sizes`, computed in `granularity` slices of its outputs; "
      "called "
      "like nn.Conv2d.forward. `pad`, `pad_mode`: what is padded before it, as by torch.nn.functional.pad. "
      "`source` and `parameters`: as of SplitCall.")
      .def(py::init<at::Tensor, std::optional<at::Tensor>, std::vector<int64_t>, std::vector<int64_t>,
                    std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>, std::string, int64_t,
                    int64_t, const py::object&>(),
           py::arg("weight"), py::arg("bias"), py::arg("sizes"), py::arg("stride"), py::arg("padding"),
           py::arg("dilation"), py::arg("pad"), py::arg("pad_mode"), py::arg("granularity"),
           py::arg("source"), py::arg("parameters") = py::none())
      .def("__call__", &SplitConvolution::operator(), py::arg("input"))
      .def("__repr__", &SplitConvolution::repr)
      .def_readonly("granularity", &SplitConvolution::granularity)
      .def_readonly("source", &SplitConvolution::source);
}
