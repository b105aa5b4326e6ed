// Bindings of csrc/runtime: a Runtime, what it is made of, and the memory meter. See call_hook.hpp for the
// hooks.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <unordered_set>

#include "bindings/call_hook.hpp"
#include "bindings/units_on_request.hpp"
#include "bindings/wrapped_parameters.hpp"
#include "runtime/owners.hpp"
#include "runtime/runtime.hpp"
#include "runtime/store/memory_meter.hpp"
#include "runtime/total_norm.hpp"

namespace py = pybind11;
namespace rt = osdp::runtime;

namespace {

using RuntimePtr = std::shared_ptr<rt::Runtime>;
using Release = py::call_guard<py::gil_scoped_release>;

RuntimePtr make_runtime(const std::string& group, const at::Device& device, std::vector<rt::ParamSpec> params,
                        std::vector<rt::UnitSpec> units, int64_t model, const std::string& shard_group,
                        const std::string& replicate_group, bool backend_memory,
                        const std::string& reductions_group, const std::string& shard_reductions_group,
                        const std::string& between_group) {
  const rt::Groups groups{
      group, shard_group, replicate_group, reductions_group, shard_reductions_group, between_group};
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
                            "A weight [out, in] in `granularity` slices along out (dim=0) or in (dim=1), the "
                            "last `sharded` of them "
                            "sharded.")
      .def(py::init([](int64_t granularity, int64_t sharded, int64_t dim) {
             return rt::SplitSpec{granularity, sharded, static_cast<osdp::ops::SplitDim>(dim)};
           }),
           py::arg("granularity"), py::arg("sharded"), py::arg("dim"));

  py::class_<rt::ParamSpec>(
      m, "ParamSpec",
      "A parameter to shard: its name, its tensor (the full value, equal on all ranks), its "
      "slices, and the dtypes in which it is computed with and its gradient reduced (None: "
      "its own). With `full_sizes`, its full shape, the tensor is empty and its value comes "
      "later: the runtime allocates this rank's part, in host memory if `offload`.")
      .def(
          py::init([](std::string name, at::Tensor tensor, std::optional<rt::SplitSpec> split,
                      std::optional<std::vector<int64_t>> full_sizes, std::optional<at::ScalarType> compute,
                      std::optional<at::ScalarType> reduce, bool offload, std::optional<at::Tensor> local) {
            return rt::ParamSpec{
                std::move(name), std::move(tensor),           split, std::move(full_sizes), {compute, reduce},
                offload,         local.value_or(at::Tensor())};
          }),
          py::arg("name"), py::arg("tensor"), py::arg("split") = std::nullopt,
          py::arg("full_sizes") = std::nullopt, py::arg("compute") = std::nullopt,
          py::arg("reduce") = std::nullopt, py::arg("offload") = false, py::arg("local") = std::nullopt);

  py::class_<rt::UnitSpec>(m, "UnitSpec",
                           "Parameters (by index) that are gathered and reduced together, and their mode.")
      .def(py::init([](std::string name, osdp::Mode mode, std::vector<int64_t> params) {
             return rt::UnitSpec{std::move(name), mode, std::move(params)};
           }),
           py::arg("name"), py::arg("mode"), py::arg("params"));

  py::class_<rt::Piece>(m, "Piece", "A block of a full tensor, and its position in this rank's local tensor.")
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
          py::arg("local"),
          "The view of this block in a tensor of the local shape (the parameter, its gradient or state).");

  py::class_<rt::Runtime, RuntimePtr> runtime_class(
      m, "Runtime",
      "Runs the training steps of one sharded model; see csrc/runtime/runtime.hpp. `group` and the other "
      "groups are "
      "names; `model` is a number that the ranks have agreed on. Shards the parameters in "
      "place. Raises ShardingError, before anything is changed, if a spec is invalid.");
  osdp::bindings::bind_units_on_request(runtime_class);
  osdp::bindings::bind_wrapped_parameters(runtime_class);
  runtime_class
      .def(py::init(&make_runtime), py::arg("group"), py::arg("device"), py::arg("params"), py::arg("units"),
           py::arg("model"), py::arg("shard_group") = "", py::arg("replicate_group") = "",
           py::arg("backend_memory") = false, py::arg("reductions_group") = "",
           py::arg("shard_reductions_group") = "", py::arg("between_group") = "", Release())
      .def_property_readonly("rank", &rt::Runtime::rank)
      .def_property_readonly(
          "rank_name", &rt::Runtime::rank_name,
          "What errors call this rank: its number in the job, and its stage of a pipeline.")
      .def_property_readonly("world", &rt::Runtime::world)
      .def(
          "add_call",
          [](const RuntimePtr& runtime, std::string module, const std::vector<int64_t>& params, bool root,
             bool hold, bool method, const std::vector<int64_t>& alone) {
            return osdp::bindings::CallHook{
                .runtime = runtime,
                .call = runtime->add_call(std::move(module), params, root, hold, method, alone)};
          },
          py::arg("module"), py::arg("params"), py::arg("root"), py::arg("hold"), py::arg("method") = false,
          py::arg("alone") = std::vector<int64_t>(),
          "The hook of a module's calls, which gather `params`. `alone`: what only a call outside of the "
          "model's needs; "
          "within it, a call around this one has gathered them.")
      .def("uninstall", &rt::Runtime::uninstall,
           "Turns the gradient hooks off, after fully_shard has failed and the model was restored.")
      .def(
          "source_of", [](rt::Runtime& runtime, int64_t param) { return runtime.slices().source_of(param); },
          py::arg("param"), "The id that SplitCall takes as `source`, for a split weight.")
      .def("join", &rt::Runtime::join, py::arg("label"), py::arg("params"), Release(),
           "Adds parameters that the model gained, as NO_SHARD. Raises ShardingError within a step.")
      .def("regroup", &rt::Runtime::regroup, py::arg("units"), Release(),
           "Replaces the units, and ends the calls, of the same parameters; the rows of each stay. Raises "
           "ShardingError, before anything is changed, where they would not, and within a step.")
      .def("set_absent", &rt::Runtime::set_absent, py::arg("params"),
           "Sets which parameters (indices) were removed from the model.")
      .def(
          "saw_tree",
          [](rt::Runtime& runtime) { runtime.saw_tree(osdp::bindings::tree_watch().registrations); },
          "Records that the model's tree has been compared after all registrations so far.")
      .def_property_readonly("tree_changed",
                             [](const rt::Runtime& runtime) {
                               return runtime.tree_changed(osdp::bindings::tree_watch().registrations);
                             })
      .def_property_readonly("summoned",
                             [](rt::Runtime& runtime) { return runtime.full_params().summoned(); })
      .def_property_readonly("in_pass", &rt::Runtime::in_pass,
                             "Whether a call of the model or a backward is in progress.")
      .def_property_readonly(
          "step_seconds", [](rt::Runtime& runtime) { return runtime.forward().step_seconds(); },
          "Seconds between the beginnings of consecutive training forwards: the last 1000.")
      .def_property_readonly("prefetch", [](rt::Runtime& runtime) { return runtime.units().prefetch(); })
      .def(
          "set_prefetch",
          [](rt::Runtime& runtime, size_t units, size_t budget_bytes) {
            runtime.units().set_prefetch(units, budget_bytes);
          },
          py::arg("units"), py::arg("budget_bytes") = 0,
          "How far ahead units are gathered: within the memory of 1 + `units` units of the largest size, or "
          "of "
          "`budget_bytes` if that is less and not 0.")
      .def_property("sync", &rt::Runtime::sync, &rt::Runtime::set_sync)
      .def(
          "reduce_kept", [](rt::Runtime& runtime) { runtime.backward().reduce_kept(); }, Release(),
          "Reduces the gradients that were kept under no_sync, between steps. Collective. Raises "
          "ShardingError within a "
          "step, and while `sync` is False.")
      .def(
          "set_gradient_scale",
          [](rt::Runtime& runtime, int64_t param, double scale) {
            runtime.parameter(param).set_gradient_scale(scale);
          },
          py::arg("param"), py::arg("scale"),
          "Every new gradient of the parameter is multiplied by `scale` before it is averaged over the "
          "ranks.")
      .def("set_sync_of", &rt::Runtime::set_sync_of, py::arg("params"), py::arg("sync"),
           "Whether backward reduces the gradients of these parameters, or keeps this rank's own as within "
           "no_sync.")
      .def_property("part", &rt::Runtime::part, &rt::Runtime::set_part)
      .def(
          "unreduced",
          [](rt::Runtime& runtime, const std::vector<int64_t>& among) -> std::optional<int64_t> {
            std::vector<const rt::Parameter*> params;
            for (const int64_t index : among) params.push_back(&runtime.parameter(index));
            const rt::Parameter* found = runtime.backward().unreduced(params);
            return found ? std::optional(static_cast<int64_t>(found->index())) : std::nullopt;
          },
          py::arg("among"),
          "Index of the first of these parameters with a gradient kept under no_sync that was neither "
          "reduced "
          "nor dropped since; None: none.")
      .def_property_readonly(
          "kept_unreduced", [](rt::Runtime& runtime) { return runtime.backward().kept_unreduced(); },
          "Whether the last backward kept gradients under no_sync.")
      .def(
          "keep_node", [](rt::Runtime& runtime, int64_t param) { runtime.parameter(param).keep_node(); },
          py::arg("param"), "After Tensor.set_: its gradients go where they went before.")
      .def(
          "pieces", [](rt::Runtime& runtime, int64_t param) { return runtime.parameter(param).pieces(); },
          py::arg("param"), "The blocks of the full tensor that this rank holds.")
      .def(
          "full_shape",
          [](rt::Runtime& runtime, int64_t param) { return runtime.parameter(param).full_sizes().vec(); },
          py::arg("param"))
      .def(
          "name", [](rt::Runtime& runtime, int64_t param) { return runtime.parameter(param).name(); },
          py::arg("param"))
      .def(
          "is_whole",
          [](rt::Runtime& runtime, int64_t param) {
            const rt::Parameter& p = runtime.parameter(param);
            const at::Tensor& wrapper = p.wrapper();  // of tensor parallelism, which may divide it
            return p.whole() && (!wrapper.defined() || wrapper.sizes() == p.full_sizes());
          },
          py::arg("param"), "Whether every rank holds all of it.")
      .def(
          "take_local",
          [](rt::Runtime& runtime, int64_t param, const at::Tensor& full) {
            const rt::Parameter& p = runtime.parameter(param);
            return p.whole() ? full : p.take_local(full);
          },
          py::arg("param"), py::arg("full"), Release(),
          "This rank's part of a tensor of the full shape: a copy, or `full` itself if the parameter is "
          "whole.")
      .def(
          "owner_of",
          [](rt::Runtime& runtime, const at::Tensor& tensor) -> std::optional<std::pair<int64_t, bool>> {
            const rt::Parameter* found = runtime.full_params().owner_of(tensor);
            if (!found) return std::nullopt;
            return std::pair(static_cast<int64_t>(found->index()), found->whole());
          },
          py::arg("tensor"),
          "Index of the parameter whose memory the tensor shares, and whether it is whole; None: of no "
          "parameter.")
      .def(
          "suspect_replicas", [](rt::Runtime& runtime) { runtime.replicas().suspect(); },
          "Has the replicas compared at the next forward, which raises ReplicaError if they differ.")
      .def(
          "gather_whole",
          [](rt::Runtime& runtime, int64_t param, const at::Tensor& local) {
            return runtime.full_params().gather(param, local);
          },
          py::arg("param"), py::arg("local"), Release(),
          "The full tensor of which `local` (of the local shape) is this rank's part. Collective. Raises "
          "ShardingError inside a forward or backward.")
      .def(
          "summon",
          [](rt::Runtime& runtime, bool with_grads) {
            runtime.let_go(/*trained=*/false);
            runtime.full_params().summon(with_grads);
          },
          py::arg("with_grads"), Release(),
          "Gives all parameters (and their gradients) their full values. Collective. Raises ShardingError if "
          "they "
          "have them already.")
      .def(
          "unsummon",
          [](rt::Runtime& runtime, bool writeback) {
            runtime.let_go(/*trained=*/false);
            runtime.full_params().unsummon(writeback);
          },
          py::arg("writeback"), Release(),
          "Ends summon. `writeback`: this rank's part of what was written is kept.")
      .def(
          "show_full",
          [](rt::Runtime& runtime, const std::vector<int64_t>& params, bool keep) {
            runtime.let_go(/*trained=*/false);
            return runtime.full_params().show_full(params, /*with_grads=*/false, keep);
          },
          py::arg("params"), py::arg("keep"), Release(),
          "Gives those of the parameters that show this rank's part their full values, without gradients; "
          "returns which these are. Collective. `keep`: a module may be called meanwhile, with what was "
          "written until then.")
      .def(
          "show_local",
          [](rt::Runtime& runtime, const std::vector<int64_t>& params, bool writeback) {
            runtime.let_go(/*trained=*/false);
            runtime.full_params().show_local(params, writeback);
          },
          py::arg("params"), py::arg("writeback"), Release(),
          "Ends show_full for them. `writeback`: this rank's part of what was written is kept.")
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
           "Sets the sentence about the plan's prediction in the text of OutOfMemoryError.")
      .def(
          "gathered_bytes", [](const rt::Runtime& runtime) { return runtime.shards().gathered_bytes(); },
          "Bytes of the full tensors that are gathered now.")
      .def(
          "copied_bytes", [](const rt::Runtime& runtime) { return runtime.shards().copied_bytes(); },
          "Bytes of the NO_SHARD parameters' copies in their compute dtype that exist now.")
      .def("arena_bytes", &rt::Runtime::arena_bytes, "Bytes of the memory reserved to gather into.")
      .def("statistics", &statistics,
           "Counts since the last reset: gathers, gathered_bytes, prefetches, reductions, reduced_bytes, "
           "sent_bytes "
           "(by this rank over OSDP's own transports).")
      .def("reset_statistics", &rt::Runtime::reset_statistics);

  m.def(
      "owners_of",
      [](const std::vector<at::Tensor>& tensors) {
        std::vector<std::optional<std::pair<RuntimePtr, int64_t>>> found;
        for (rt::Owner& owner : rt::owners_of(tensors)) {
          found.emplace_back();
          if (owner.runtime) found.back().emplace(std::move(owner.runtime), owner.param);
        }
        return found;
      },
      py::arg("tensors"),
      "For each tensor: the runtime and the index of the parameter that it is, or whose gradient it is; "
      "None: of "
      "no sharded model. See csrc/runtime/owners.hpp.");
  m.def("has_reducer", &rt::has_reducer, py::arg("tensor"),
        "Whether the reducer of a DistributedDataParallel waits for the tensor's gradient.");
  m.def("norm_over_ranks", &rt::norm_over_ranks, py::arg("tensors"), py::arg("norm_type"),
        py::arg("error_if_nonfinite"), py::arg("parts"), Release(),
        "The norm of the full tensors of which the given ones may be this rank's parts. Collective. See "
        "csrc/runtime/total_norm.hpp.");
  m.def(
      "await_backwards",
      [] {
        for (const auto& runtime : rt::live_runtimes()) runtime->backward().await_end();
      },
      Release(),
      "Blocks, after an exception in a backward, until every model is restored: see Note [A backward that "
      "ends "
      "elsewhere].");
  m.def(
      "begin_backwards",
      [](const at::Tensor&) {
        for (const auto& runtime : rt::live_runtimes()) runtime->backward().begin_again();
      },
      py::arg("gradient"), Release(),
      "A hook for a gradient that was computed with create_graph=True: see Note [Backward of a backward].");
  m.def(
      "check_asked",
      [](const std::vector<at::Tensor>& tensors) {
        std::unordered_set<torch::autograd::Node*> nodes;
        for (const at::Tensor& tensor : tensors)
          if (tensor.defined() && tensor.is_leaf() && tensor.requires_grad())
            nodes.insert(torch::autograd::impl::grad_accumulator(tensor).get());
        const auto wanted = [&](torch::autograd::Node* node) { return nodes.contains(node); };
        for (const auto& runtime : rt::live_runtimes()) runtime->backward().check_asked(wanted);
      },
      py::arg("tensors"),
      "Raises ShardingError if torch.autograd.grad of these would be this rank's own gradients: see Note "
      "[Gradients that are asked for].");
  m.def("memory_meter_install", &rt::memory_meter_install);
  m.def("memory_live_bytes", &rt::memory_live_bytes);
  m.def("memory_peak_bytes", &rt::memory_peak_bytes);
  m.def("memory_reset_peak", &rt::memory_reset_peak);
}
