// Bindings of csrc/search: osdp._search. Integers in, dictionaries out; osdp/searching.py gives them names
// and types.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "search/branch.hpp"
#include "search/certificate.hpp"
#include "search/schedule.hpp"

namespace py = pybind11;
using namespace py::literals;
using namespace osdp::search;

namespace {

using Pairs = std::vector<std::vector<std::pair<int64_t, int64_t>>>;

Problem make_problem(const Pairs& options, int64_t limit, std::vector<std::string> names) {
  Problem p;
  p.limit_bytes = limit;
  p.names = std::move(names);
  p.operators.reserve(options.size());
  for (const auto& list : options) {
    auto& out = p.operators.emplace_back();
    out.reserve(list.size());
    for (const auto& [time, memory] : list) out.push_back({time, memory});
  }
  return p;
}

// Ctrl-C: asks Python for signals now and then. The search runs without the GIL and takes it for the question
// only.
Budget make_budget(double time_limit_s) {
  return {time_limit_s, [] {
            py::gil_scoped_acquire gil;
            return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0;
          }};
}

py::dict solution_dict(const Solution& s) {
  return py::dict("status"_a = s.status == Status::Optimal    ? "optimal"
                               : s.status == Status::Feasible ? "feasible"
                                                              : "infeasible",
                  "choices"_a = s.choices, "time"_a = s.time_ps, "memory"_a = s.memory_bytes,
                  "lower_bound"_a = s.lower_bound_ps, "smallest_limit"_a = s.smallest_limit_bytes,
                  "multiplier"_a = std::pair(s.multiplier.numerator, s.multiplier.denominator),
                  "seconds"_a = s.statistics.seconds, "nodes"_a = s.statistics.nodes,
                  "groups"_a = s.statistics.groups, "largest_list"_a = s.statistics.largest_list,
                  "rounds"_a = s.statistics.rounds);
}

py::dict solve(const Pairs& options, int64_t limit, const std::string& method, double time_limit_s,
               std::vector<std::string> names) {
  Solution s;
  {
    py::gil_scoped_release release;
    const Problem problem = make_problem(options, limit, std::move(names));
    const Budget budget = make_budget(time_limit_s);
    s = method == "dfs" ? solve_dfs(problem, budget) : solve_exact(problem, budget);
  }
  // A signal handler that raised: its exception, with the best so far lost, unless the handler swallowed it.
  if (PyErr_Occurred()) throw py::error_already_set();
  return solution_dict(s);
}

std::string check_solution(const Pairs& options, int64_t limit, const std::vector<int>& choices, int64_t time,
                           int64_t memory, int64_t lower_bound, std::pair<int64_t, int64_t> multiplier) {
  return check(make_problem(options, limit, {}), choices,
               {time, memory, lower_bound, {multiplier.first, multiplier.second}});
}

py::dict candidate_dict(const Candidate& c) {
  return py::dict("mode"_a = static_cast<int>(c.mode), "granularity"_a = c.granularity,
                  "sharded_slices"_a = c.sharded_slices, "split"_a = static_cast<int>(c.split),
                  "state_bytes"_a = c.state_bytes, "transient_bytes"_a = c.transient_bytes,
                  "communication_ps"_a = c.communication_ps, "optimizer_ps"_a = c.optimizer_ps);
}

std::vector<int> as_ints(const std::vector<Recompute>& recompute) {
  std::vector<int> out;
  for (Recompute r : recompute) out.push_back(static_cast<int>(r));
  return out;
}

py::dict knapsack_dict(const Knapsack& k) {
  py::list candidates;
  for (const auto& list : k.candidates) {
    py::list row;
    for (const Candidate& c : list) row.append(candidate_dict(c));
    candidates.append(row);
  }
  Pairs options;
  for (const auto& list : k.problem.operators) {
    auto& row = options.emplace_back();
    for (const Option& o : list) row.emplace_back(o.time_ps, o.memory_bytes);
  }
  return py::dict("options"_a = options, "limit"_a = k.problem.limit_bytes, "candidates"_a = candidates,
                  "operators"_a = k.operators, "constant_ps"_a = k.constant_ps,
                  "constant_bytes"_a = k.constant_bytes);
}

py::dict run_schedule(const Model& model, const Request& request, double time_limit_s) {
  Schedule s;
  {
    py::gil_scoped_release release;
    s = schedule(model, request, make_budget(time_limit_s));
  }
  if (PyErr_Occurred()) throw py::error_already_set();
  return py::dict("feasible"_a = s.feasible, "optimal"_a = s.optimal, "batch_size"_a = s.fixed.batch.size,
                  "accumulation"_a = s.fixed.batch.accumulation, "recompute"_a = as_ints(s.fixed.recompute),
                  "transient_bytes"_a = s.fixed.transient_bytes, "knapsack"_a = knapsack_dict(s.knapsack),
                  "solution"_a = solution_dict(s.solution), "step_ps"_a = s.step_ps,
                  "peak_bytes"_a = s.peak_bytes, "smallest_limit"_a = s.smallest_limit_bytes,
                  "knapsacks"_a = s.knapsacks, "nodes"_a = s.nodes, "seconds"_a = s.seconds,
                  "lower_bound_s_per_sample"_a = s.lower_bound_s_per_sample);
}

void bind_schedule(py::module_& m) {
  py::class_<Tensor>(m, "Tensor")
      .def(py::init([](int64_t rows, int64_t row_bytes, bool trainable, bool shardable) {
             return Tensor{rows, row_bytes, trainable, shardable};
           }),
           "rows"_a, "row_bytes"_a, "trainable"_a, "shardable"_a);
  py::class_<Operator>(m, "Operator")
      .def(py::init<>())
      .def_readwrite("name", &Operator::name)
      .def_readwrite("tensors", &Operator::tensors)
      .def_readwrite("split_tensor", &Operator::split_tensor)
      .def_readwrite("out_features", &Operator::out_features)
      .def_readwrite("in_features", &Operator::in_features)
      .def_readwrite("calls", &Operator::calls)
      .def_readwrite("block", &Operator::block)
      .def_readwrite("saved_bytes_per_sample", &Operator::saved_bytes_per_sample)
      .def_readwrite("saved_bytes_fixed", &Operator::saved_bytes_fixed)
      .def_readwrite("compute_s_per_sample", &Operator::compute_s_per_sample)
      .def_readwrite("compute_s_fixed", &Operator::compute_s_fixed)
      .def_readwrite("recompute_s_per_sample", &Operator::recompute_s_per_sample);
  py::class_<Model>(m, "Model")
      .def(py::init([](std::vector<Operator> operators,
                       std::vector<std::tuple<std::string, int64_t, int>> blocks, int kinds,
                       int64_t input_bytes_per_sample) {
             Model model{std::move(operators), {}, kinds, input_bytes_per_sample};
             for (auto& [name, bytes, kind] : blocks) {
               if (kind < 0 || kind >= kinds) throw InvalidProblem("block '" + name + "': no such kind");
               model.blocks.push_back({name, bytes, kind});
             }
             return model;
           }),
           "operators"_a, "blocks"_a, "kinds"_a, "input_bytes_per_sample"_a)
      .def_property_readonly("block_kinds", [](const Model& model) {
        std::vector<int> kinds;
        for (const Block& b : model.blocks) kinds.push_back(b.kind);
        return kinds;
      });
  py::class_<Request>(m, "Request")
      .def(py::init([](const std::string& cost, const std::vector<int>& modes,
                       std::vector<int64_t> granularities, int64_t optimizer_bytes_per_parameter_byte,
                       int64_t bucket_bytes, double slice_overhead_s, int64_t ranks,
                       const std::vector<std::pair<double, double>>& collectives, double optimizer_s_per_byte,
                       int64_t limit_bytes, const std::vector<std::pair<int64_t, int64_t>>& batches,
                       const std::vector<int>& recompute, int64_t least_transient_bytes, bool depth_first) {
             Request r;
             r.space.cost = cost == "paper" ? Cost::Paper : Cost::Osdp;
             for (int mode : modes) r.space.modes.push_back(static_cast<Mode>(mode));
             r.space.granularities = std::move(granularities);
             r.space.optimizer_bytes_per_parameter_byte = optimizer_bytes_per_parameter_byte;
             r.space.bucket_bytes = bucket_bytes;
             r.space.slice_overhead_s = slice_overhead_s;
             r.device.ranks = ranks;
             r.device.all_gather = {collectives.at(0).first, collectives.at(0).second};
             r.device.reduce_scatter = {collectives.at(1).first, collectives.at(1).second};
             r.device.all_reduce = {collectives.at(2).first, collectives.at(2).second};
             r.device.optimizer_s_per_byte = optimizer_s_per_byte;
             r.limit_bytes = limit_bytes;
             for (const auto& [size, accumulation] : batches) r.batches.push_back({size, accumulation});
             for (int x : recompute) r.recompute.push_back(static_cast<Recompute>(x));
             r.least_transient_bytes = least_transient_bytes;
             r.depth_first = depth_first;
             return r;
           }),
           py::kw_only(), "cost"_a, "modes"_a, "granularities"_a, "optimizer_bytes_per_parameter_byte"_a,
           "bucket_bytes"_a, "slice_overhead_s"_a, "ranks"_a, "collectives"_a, "optimizer_s_per_byte"_a,
           "limit_bytes"_a, "batches"_a, "recompute"_a, "least_transient_bytes"_a, "depth_first"_a);
  m.attr("ANY_TRANSIENT") = kAnyTransient;
  m.def("schedule", &run_schedule, "model"_a, "request"_a, "time_limit_s"_a);
  m.def(
      "make_knapsack",
      [](const Model& model, const Request& request, std::pair<int64_t, int64_t> batch,
         const std::vector<int>& recompute, int64_t transient_bytes) {
        Fixed fixed{{batch.first, batch.second}, {}, transient_bytes};
        for (int x : recompute) fixed.recompute.push_back(static_cast<Recompute>(x));
        return knapsack_dict(make_knapsack(model, request, fixed));
      },
      "model"_a, "request"_a, "batch"_a, "recompute"_a, "transient_bytes"_a);
}

}  // namespace

void bind_json(py::module_& m);  // bindings/json.cpp

PYBIND11_MODULE(_search, m) {
  bind_schedule(m);
  bind_json(m);
  m.doc() = "The planner's search (csrc/search). Use osdp.solve and osdp.search.";
  py::register_exception<InvalidProblem>(m, "InvalidProblem", PyExc_ValueError);
  m.def("solve", &solve, "options"_a, "limit"_a, "method"_a, "time_limit_s"_a, "names"_a);
  m.def("check", &check_solution, "options"_a, "limit"_a, "choices"_a, "time"_a, "memory"_a, "lower_bound"_a,
        "multiplier"_a);
  m.def(
      "proven_lower_bound",
      [](const Pairs& options, int64_t limit, std::pair<int64_t, int64_t> multiplier) {
        const Problem p = make_problem(options, limit, {});
        validate(p);
        return proven_lower_bound(p, {multiplier.first, multiplier.second});
      },
      "options"_a, "limit"_a, "multiplier"_a);
}
