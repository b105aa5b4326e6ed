// Bindings of the input and output values of csrc/search/problem.
#include "search/problem/problem.hpp"
#include "bindings/names.hpp"
#include "search/problem/cost.hpp"
#include "search/problem/plain_plan.hpp"

template <>
struct osdp::Names<osdp::search::Algorithm> {
  static constexpr const char* what = "algorithm";
  static constexpr size_t count = osdp::search::kAlgorithms.size();
  static const char* at(size_t code) { return osdp::search::kAlgorithms.at(code); }
};
template <>
struct pybind11::detail::type_caster<osdp::search::Algorithm>
    : pybind11::detail::name_caster<osdp::search::Algorithm> {};

namespace py = pybind11;
using namespace py::literals;
using namespace osdp::search;

namespace {

void bind_model(py::module_& m) {
  py::class_<Tensor>(m, "Tensor", "A parameter: `rows` of `row_bytes` each.")
      .def(py::init([](int64_t rows, int64_t row_bytes, bool trainable, bool shardable,
                       int64_t compute_row_bytes, int64_t reduce_row_bytes, int64_t item_bytes) {
             return Tensor{rows,      row_bytes, trainable, shardable, compute_row_bytes, reduce_row_bytes,
                           item_bytes};
           }),
           py::kw_only(), "rows"_a, "row_bytes"_a, "trainable"_a, "shardable"_a, "compute_row_bytes"_a = 0,
           "reduce_row_bytes"_a = 0, "item_bytes"_a = 4);
  py::class_<Operator>(m, "Operator")
      .def(py::init<>())
      .def_readwrite("name", &Operator::name)
      .def_readwrite("tensors", &Operator::tensors)
      .def_readwrite("split_tensor", &Operator::split_tensor)
      .def_readwrite("out_features", &Operator::out_features)
      .def_readwrite("in_features", &Operator::in_features)
      .def_readwrite("calls", &Operator::calls)
      .def_readwrite("places", &Operator::places)
      .def_readwrite("block", &Operator::block)
      .def_readwrite("saved_bytes_per_sample", &Operator::saved_bytes_per_sample)
      .def_readwrite("saved_bytes_fixed", &Operator::saved_bytes_fixed)
      .def_readwrite("rows_per_sample", &Operator::rows_per_sample)
      .def_readwrite("work_bytes_per_sample", &Operator::work_bytes_per_sample)
      .def_readwrite("work_bytes_fixed", &Operator::work_bytes_fixed)
      .def_readwrite("forward_work_bytes_per_sample", &Operator::forward_work_bytes_per_sample)
      .def_readwrite("forward_work_bytes_fixed", &Operator::forward_work_bytes_fixed)
      .def_readwrite("backward_work_bytes_per_sample", &Operator::backward_work_bytes_per_sample)
      .def_readwrite("backward_work_bytes_fixed", &Operator::backward_work_bytes_fixed)
      .def_readwrite("waiting_gradient_bytes", &Operator::waiting_gradient_bytes)
      .def_readwrite("compute_s_per_sample", &Operator::compute_s_per_sample)
      .def_readwrite("compute_s_fixed", &Operator::compute_s_fixed)
      .def_readwrite("recompute_s_per_sample", &Operator::recompute_s_per_sample)
      .def_readwrite("recompute_s_fixed", &Operator::recompute_s_fixed)
      .def_readwrite("look_ups", &Operator::look_ups,
                     "Places, the first ones, that look rows of the table up.")
      .def_readwrite("transposed", &Operator::transposed, "The weight to split is stored as [in, out].")
      .def_readwrite(
          "convolution", &Operator::convolution,
          "The weight to split is a convolution's, [out, in, ...], with slices of its outputs alone.")
      .def_readwrite("slices_s", &Operator::slices_s);
  py::class_<Model>(m, "Model", "`blocks`: name and bytes of its input for each sample.")
      .def(py::init([](std::vector<Operator> operators, std::vector<std::pair<std::string, int64_t>> blocks,
                       int64_t input_bytes_per_sample, int64_t buffer_bytes) {
             Model model{std::move(operators), {}, input_bytes_per_sample, buffer_bytes};
             for (auto& [name, bytes] : blocks) {
               if (bytes < 0) throw InvalidProblem("block '" + name + "': negative input");
               model.blocks.push_back({name, bytes});
             }
             return model;
           }),
           "operators"_a, "blocks"_a, "input_bytes_per_sample"_a, "buffer_bytes"_a);
}

void bind_request(py::module_& m) {
  py::class_<Collective>(m, "Collective", "A ring step takes alpha_s + bytes beta_s_per_byte.")
      .def(py::init(
               [](double alpha_s, double beta_s_per_byte) { return Collective{alpha_s, beta_s_per_byte}; }),
           "alpha_s"_a, "beta_s_per_byte"_a);
  py::class_<Protocol>(m, "Protocol", "A way in which NCCL runs collectives.")
      .def(py::init([](Algorithm algorithm, double base_s, double inner_hop_s, double outer_hop_s,
                       double bandwidth_share, double most_bytes_per_s) {
             return Protocol{algorithm, base_s, inner_hop_s, outer_hop_s, bandwidth_share, most_bytes_per_s};
           }),
           "algorithm"_a, "base_s"_a, "inner_hop_s"_a, "outer_hop_s"_a, "bandwidth_share"_a,
           "most_bytes_per_s"_a);
  py::class_<Device>(m, "Device")
      .def(
          py::init([](int64_t ranks, int64_t hosts, Collective all_gather, Collective reduce_scatter,
                      Collective all_reduce, Collective between_hosts, double exposed,
                      double optimizer_s_per_byte, double recompute_slowdown, std::vector<Protocol> protocols,
                      Collective host_copy, double host_optimizer_s_per_byte) {
            Device d{ranks,         hosts,   all_gather,           reduce_scatter,    all_reduce,
                     between_hosts, exposed, optimizer_s_per_byte, recompute_slowdown};
            d.protocols = std::move(protocols);
            d.host = {host_copy, host_optimizer_s_per_byte};
            return d;
          }),
          py::kw_only(), "ranks"_a, "hosts"_a, "all_gather"_a, "reduce_scatter"_a, "all_reduce"_a,
          "between_hosts"_a, "exposed"_a, "optimizer_s_per_byte"_a, "recompute_slowdown"_a,
          "protocols"_a = std::vector<Protocol>(), "host_copy"_a = Collective{},
          "host_optimizer_s_per_byte"_a = 0.0);
  py::class_<Batch>(m, "Batch", "Samples per rank, and how many such micro-batches make a step.")
      .def(py::init([](int64_t size, int64_t accumulation) { return Batch{size, accumulation}; }), "size"_a,
           "accumulation"_a = 1)
      .def_readonly("size", &Batch::size)
      .def_readonly("accumulation", &Batch::accumulation)
      .def("samples", &Batch::samples);
  py::class_<OptimizerState>(m, "OptimizerState", "What an optimizer keeps of a tensor, in bytes.")
      .def(py::init([](int64_t copies, int64_t per_256, int64_t small, int64_t small_item) {
             return OptimizerState{copies, per_256, small, small_item};
           }),
           "copies"_a, "per_256"_a = 0, "small"_a = 0, "small_item"_a = 0);
  py::class_<Request>(m, "Request", "What is searched for; without `batches`, every size that fits.")
      .def(py::init([](const Device& device, bool paper, std::vector<osdp::Mode> modes,
                       std::vector<int64_t> granularities, std::vector<int64_t> prefetches,
                       OptimizerState optimizer, int64_t bucket_bytes, double slice_overhead_s,
                       std::vector<osdp::Recompute> recompute, bool find_smallest, bool depth_first,
                       bool smallest_first, int64_t in_flight, int64_t stage_micro_batches) {
             Request r;
             r.device = device;
             r.space.cost = paper ? Cost::Paper : Cost::Osdp;
             r.space.modes = std::move(modes), r.space.granularities = std::move(granularities);
             r.space.prefetches = std::move(prefetches);
             r.space.optimizer = optimizer;
             r.space.bucket_bytes = bucket_bytes, r.space.slice_overhead_s = slice_overhead_s;
             r.recompute = std::move(recompute);
             r.find_smallest = find_smallest;
             r.depth_first = depth_first, r.smallest_first = smallest_first;
             r.space.stage = {in_flight, stage_micro_batches};
             return r;
           }),
           py::kw_only(), "device"_a, "paper"_a, "modes"_a, "granularities"_a, "prefetches"_a, "optimizer"_a,
           "bucket_bytes"_a, "slice_overhead_s"_a, "recompute"_a, "find_smallest"_a = false, "depth_first"_a,
           "smallest_first"_a, "in_flight"_a = 1, "stage_micro_batches"_a = 0)
      .def_readonly("device", &Request::device)
      .def_readwrite("limit_bytes", &Request::limit_bytes)
      .def_readwrite("batches", &Request::batches);
}

void bind_plan(py::module_& m) {
  using Choice = PlainPlan::Choice;
  py::class_<Choice>(m, "Choice", "How an operator is sharded; of one without parameters: ignored.")
      .def(py::init([](osdp::Mode mode, int64_t granularity, int64_t sharded_slices, osdp::Split split) {
             return Choice{mode, granularity, sharded_slices, split};
           }),
           "mode"_a = osdp::Mode::NoShard, "granularity"_a = 1, "sharded_slices"_a = 0,
           "split"_a = osdp::Split::None)
      .def_readonly("mode", &Choice::mode)
      .def_readonly("granularity", &Choice::granularity)
      .def_readonly("sharded_slices", &Choice::sharded_slices)
      .def_readonly("split", &Choice::split);
  py::class_<PlainPlan>(m, "Plan", "Choices beside the model's operators, recomputation beside its blocks.")
      .def(py::init([](Batch batch, std::vector<Choice> choices, std::vector<osdp::Recompute> blocks,
                       int64_t prefetch, int64_t gather_bytes) {
             return PlainPlan{batch, std::move(choices), std::move(blocks), prefetch, gather_bytes};
           }),
           "batch"_a, "choices"_a, "blocks"_a, "prefetch"_a = 1, "gather_bytes"_a = 0)
      .def_readonly("prefetch", &PlainPlan::prefetch)
      .def_readonly("gather_bytes", &PlainPlan::gather_bytes)
      .def_readonly("batch", &PlainPlan::batch)
      .def_readonly("choices", &PlainPlan::choices)
      .def_readonly("blocks", &PlainPlan::blocks);
  py::class_<Candidate>(m, "Candidate", "One way to treat one operator, and what it costs.")
      .def_property_readonly(
          "choice",
          [](const Candidate& c) { return Choice{c.mode, c.granularity, c.sharded_slices, c.split}; })
      .def(
          "is_choice",
          [](const Candidate& c, const Choice& choice) {
            return Choice{c.mode, c.granularity, c.sharded_slices, c.split} == choice;
          },
          "choice"_a)
      .def_readonly("state_bytes", &Candidate::state_bytes)
      .def_readonly("gradient_bytes", &Candidate::gradient_bytes)
      .def_readonly("whole_gradient_bytes", &Candidate::whole_gradient_bytes)
      .def_readonly("gathered_bytes", &Candidate::gathered_bytes)
      .def_readonly("held_bytes", &Candidate::held_bytes)
      .def_readonly("transient_bytes", &Candidate::transient_bytes)
      .def_readonly("communication_ps", &Candidate::communication_ps)
      .def_readonly("optimizer_ps", &Candidate::optimizer_ps)
      .def_readonly("host_bytes", &Candidate::host_bytes);
}

}  // namespace

void bind_problem(py::module_& m) {
  m.attr("MODES") = osdp::names_of<osdp::Mode>();
  m.attr("SPLITS") = osdp::names_of<osdp::Split>();
  m.attr("RECOMPUTES") = osdp::names_of<osdp::Recompute>();
  m.attr("ALGORITHMS") = osdp::names_of<Algorithm>();
  m.attr("MOST_BATCH") = kMostBatch;
  py::class_<osdp::ModeTraits>(m, "ModeTraits")
      .def_readonly("sharded", &osdp::ModeTraits::sharded)
      .def_readonly("kept", &osdp::ModeTraits::kept)
      .def_readonly("inside_hosts", &osdp::ModeTraits::inside_hosts)
      .def_readonly("sliced", &osdp::ModeTraits::sliced)
      .def_readonly("on_host", &osdp::ModeTraits::on_host)
      .def_readonly("by_hosts", &osdp::ModeTraits::by_hosts)
      .def_readonly("second", &osdp::ModeTraits::second)
      .def_property_readonly(
          "reduced_between", &osdp::reduced_between,
          "Whether it tells hosts apart: gradients are reduced inside hosts first, then between.");
  m.def("slices_fit", &osdp::slices_fit, "length"_a, "granularity"_a, "by_rows"_a,
        "Whether a dimension of that length can be cut into `granularity` slices. `by_rows`: of the weight "
        "as it "
        "is stored, which may leave a rest.");
  m.def("traits", [](osdp::Mode mode) { return osdp::traits(mode); }, "mode"_a, "Of a mode, by its name.");
  bind_model(m);
  bind_request(m);
  bind_plan(m);
  m.def(
      "candidates",
      [](const Model& model, const Request& request, int operator_, osdp::Recompute recompute) {
        const Operator& op = model.operators.at(operator_);
        std::vector<Candidate> kept;
        for (const Candidate& c : candidates(op, request.device, request.space, recompute))
          kept.push_back(candidate_of(op, request.device, request.space, recompute, c.mode, c.granularity,
                                      c.sharded_slices, c.split));
        return kept;
      },
      "model"_a, "request"_a, "operator"_a, "recompute"_a,
      "Of one operator, NO_SHARD first, with the bytes that the runtime keeps.");
}
