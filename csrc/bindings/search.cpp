// Bindings of csrc/search: osdp._search. Integers in, dictionaries out; search.py gives them names
// and types.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/found.hpp"
#include "bindings/plain_plan.hpp"
#include "search/branch/schedule.hpp"
#include "search/certificate/knapsack_certificate.hpp"
#include "search/certificate/lower_bound_check.hpp"
#include "search/certificate/plan_certificate.hpp"
#include "search/knapsack/hull_bound.hpp"
#include "search/knapsack/solve.hpp"

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
Budget make_budget(double time_limit_s, double gap = 0, int64_t state_bytes = 0) {
  return {time_limit_s,
          [] {
            py::gil_scoped_acquire gil;
            return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0;
          },
          gap, state_bytes};
}

// Whether there was a Ctrl-C: the best so far is the answer, where there is one. Other exceptions of signal
// handlers go on.
bool end_of_search(bool found) {
  if (PyErr_Occurred() == nullptr) return false;
  if (found && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0) {
    PyErr_Clear();
    return true;
  }
  throw py::error_already_set();
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

py::dict solve_view(const ProblemView& problem, const std::string& method, const Budget& budget) {
  Solution s;
  {
    py::gil_scoped_release release;
    s = method == "exact" ? solve_exact(problem, budget)
                          : solve_dfs(problem, budget, method == "dfs-smallest-first");
    if (method != "exact") s.multiplier = price_of_memory(problem);
  }
  end_of_search(!s.choices.empty());
  return solution_dict(s);
}

py::dict solve(const Pairs& options, int64_t limit, const std::string& method, double time_limit_s,
               std::vector<std::string> names, double gap, int64_t state_bytes) {
  const Problem problem = make_problem(options, limit, std::move(names));
  return solve_view(problem, method, make_budget(time_limit_s, gap, state_bytes));
}

// A C-contiguous int64 array of shape (operators, options, 2), not copied.
ProblemView view_table(const py::buffer_info& table, int64_t limit) {
  static_assert(sizeof(Option) == 2 * sizeof(int64_t));
  return {static_cast<const Option*>(table.ptr), static_cast<size_t>(table.shape.at(0)),
          static_cast<size_t>(table.shape.at(1)), limit};
}

py::dict solve_table(const py::buffer& table, int64_t limit, const std::string& method, double time_limit_s,
                     const std::vector<std::string>& names, double gap, int64_t state_bytes) {
  const py::buffer_info info = table.request();
  ProblemView problem = view_table(info, limit);
  problem.names = names;
  return solve_view(problem, method, make_budget(time_limit_s, gap, state_bytes));
}

std::string check_view(const ProblemView& problem, const std::vector<int>& choices, int64_t time,
                       int64_t memory, int64_t lower_bound, std::pair<int64_t, int64_t> multiplier) {
  py::gil_scoped_release release;
  return check_all(problem, choices, {time, memory, lower_bound, {multiplier.first, multiplier.second}});
}

py::dict candidate_dict(const Candidate& c) {
  return py::dict("mode"_a = static_cast<int>(c.mode), "granularity"_a = c.granularity,
                  "sharded_slices"_a = c.sharded_slices, "split"_a = static_cast<int>(c.split),
                  "state_bytes"_a = c.state_bytes, "gradient_bytes"_a = c.gradient_bytes,
                  "whole_gradient_bytes"_a = c.whole_gradient_bytes, "own_bytes"_a = c.own_bytes,
                  "gathered_bytes"_a = c.gathered_bytes, "held_bytes"_a = c.held_bytes,
                  "transient_bytes"_a = c.transient_bytes, "communication_ps"_a = c.communication_ps,
                  "optimizer_ps"_a = c.optimizer_ps);
}

py::list candidate_list(const std::vector<Candidate>& list) {
  py::list row;
  for (const Candidate& c : list) row.append(candidate_dict(c));
  return row;
}

constexpr int64_t kStateBytes = int64_t{256} << 20;  // of each knapsack that it solves

py::dict run_schedule(const Model& model, const Request& request, double time_limit_s, double gap,
                      int64_t work) {
  Schedule s;
  {
    py::gil_scoped_release release;
    Budget budget = make_budget(time_limit_s, gap, kStateBytes);
    if (work > 0) budget.work = &work;
    s = schedule(model, request, budget);
  }
  const bool interrupted = end_of_search(s.feasible);
  py::list runners_up;
  for (const Found& f : s.runners_up) runners_up.append(found_dict(f));
  std::vector<std::pair<int, double>> prices;
  for (const RowPrice& p : s.prices) prices.emplace_back(p.phase, p.ps_per_byte);
  return py::dict("feasible"_a = s.feasible, "interrupted"_a = interrupted, "optimal"_a = s.optimal,
                  "batch_size"_a = s.batch.size, "accumulation"_a = s.batch.accumulation,
                  "blocks"_a = codes(s.decision.ways), "choices"_a = s.decision.choices,
                  "transient_bytes"_a = s.transient_bytes, "step_ps"_a = s.step_ps,
                  "peak_bytes"_a = s.peak_bytes, "phases"_a = s.phases, "prices"_a = prices,
                  "runners_up"_a = runners_up, "smallest_limit"_a = s.smallest_limit_bytes,
                  "regions"_a = s.regions, "leaves"_a = s.leaves, "nodes"_a = s.nodes, "rows"_a = s.rows,
                  "seconds"_a = s.seconds, "lower_bound_s_per_sample"_a = s.lower_bound_s_per_sample);
}

std::vector<PhasePrice> phase_prices(const std::vector<std::pair<int, int64_t>>& prices) {
  std::vector<PhasePrice> out;
  for (const auto& [phase, numerator] : prices) out.push_back({phase, numerator});
  return out;
}

void bind_certificate(py::module_& m) {
  m.def(
      "check_plan",
      [](const Model& model, const Request& request, std::pair<int64_t, int64_t> batch,
         const std::vector<std::tuple<int, int64_t, int64_t, int>>& choices, const std::vector<int>& blocks,
         int64_t time_ps, int64_t memory_bytes, int64_t lower_bound_ps,
         const std::vector<std::pair<int, int64_t>>& prices, int64_t denominator) {
        return check_plan(model, request, plain_plan(batch, choices, blocks),
                          {time_ps, memory_bytes, lower_bound_ps, phase_prices(prices), denominator});
      },
      "model"_a, "request"_a, "batch"_a, "choices"_a, "blocks"_a, "time_ps"_a, "memory_bytes"_a,
      "lower_bound_ps"_a, "prices"_a, "denominator"_a);
  m.def(
      "plan_lower_bound",
      [](const Model& model, const Request& request, std::pair<int64_t, int64_t> batch,
         const std::vector<std::tuple<int, int64_t, int64_t, int>>& choices, const std::vector<int>& blocks,
         const std::vector<std::pair<int, int64_t>>& prices, int64_t denominator) {
        return plan_lower_bound(model, request, plain_plan(batch, choices, blocks), phase_prices(prices),
                                denominator);
      },
      "model"_a, "request"_a, "batch"_a, "choices"_a, "blocks"_a, "prices"_a, "denominator"_a);
}

void bind_schedule(py::module_& m) {
  py::class_<Tensor>(m, "Tensor")
      .def(py::init([](int64_t rows, int64_t row_bytes, bool trainable, bool shardable,
                       int64_t compute_row_bytes, int64_t reduce_row_bytes) {
             return Tensor{rows, row_bytes, trainable, shardable, compute_row_bytes, reduce_row_bytes};
           }),
           "rows"_a, "row_bytes"_a, "trainable"_a, "shardable"_a, "compute_row_bytes"_a = 0,
           "reduce_row_bytes"_a = 0);
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
      .def_readwrite("work_bytes_per_sample", &Operator::work_bytes_per_sample)
      .def_readwrite("work_bytes_fixed", &Operator::work_bytes_fixed)
      .def_readwrite("compute_s_per_sample", &Operator::compute_s_per_sample)
      .def_readwrite("compute_s_fixed", &Operator::compute_s_fixed)
      .def_readwrite("recompute_s_per_sample", &Operator::recompute_s_per_sample);
  py::class_<Model>(m, "Model")
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
  py::class_<Request>(m, "Request")
      .def(py::init([](const std::string& cost, const std::vector<int>& modes,
                       std::vector<int64_t> granularities, int64_t optimizer_bytes_per_parameter_byte,
                       int64_t bucket_bytes, double slice_overhead_s, int64_t ranks, int64_t hosts,
                       const std::vector<std::pair<double, double>>& collectives, double exposed,
                       double optimizer_s_per_byte, double recompute_slowdown, int64_t limit_bytes,
                       const std::vector<std::pair<int64_t, int64_t>>& batches,
                       const std::vector<int>& recompute, int64_t least_transient_bytes, int64_t buffers,
                       bool find_smallest, bool depth_first, bool smallest_first, int64_t cost_version) {
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
             r.device.between_hosts = {collectives.at(3).first, collectives.at(3).second};
             r.device.hosts = hosts;
             r.device.exposed = exposed;
             r.device.optimizer_s_per_byte = optimizer_s_per_byte;
             r.device.recompute_slowdown = recompute_slowdown;
             r.limit_bytes = limit_bytes;
             for (const auto& [size, accumulation] : batches) r.batches.push_back({size, accumulation});
             for (int x : recompute) r.recompute.push_back(static_cast<Recompute>(x));
             r.least_transient_bytes = least_transient_bytes;
             r.buffers = buffers;
             r.find_smallest = find_smallest;
             r.depth_first = depth_first;
             r.smallest_first = smallest_first;
             r.space.cost_version = cost_version;
             return r;
           }),
           py::kw_only(), "cost"_a, "modes"_a, "granularities"_a, "optimizer_bytes_per_parameter_byte"_a,
           "bucket_bytes"_a, "slice_overhead_s"_a, "ranks"_a, "hosts"_a, "collectives"_a, "exposed"_a,
           "optimizer_s_per_byte"_a, "recompute_slowdown"_a, "limit_bytes"_a, "batches"_a, "recompute"_a,
           "least_transient_bytes"_a, "buffers"_a, "find_smallest"_a, "depth_first"_a, "smallest_first"_a,
           "cost_version"_a);
  m.def("schedule", &run_schedule, "model"_a, "request"_a, "time_limit_s"_a, "gap"_a = 0.0, "work"_a = 0);
  m.def(
      "candidates",
      [](const Model& model, const Request& request, int operator_, int recompute) {
        return candidate_list(candidates(model.operators.at(operator_), request.device, request.space,
                                         static_cast<Recompute>(recompute)));
      },
      "model"_a, "request"_a, "operator"_a, "recompute"_a);
  bind_certificate(m);
}

}  // namespace

void bind_json(py::module_& m);       // bindings/json.cpp
void bind_simulate(py::module_& m);   // bindings/simulate.cpp
void bind_rehearsal(py::module_& m);  // bindings/rehearsal.cpp

PYBIND11_MODULE(_search, m) {
  bind_schedule(m);
  bind_json(m);
  bind_simulate(m);
  bind_rehearsal(m);
  m.doc() = "The planner's search (csrc/search). Use osdp.solve and osdp.search.";
  py::register_exception<InvalidProblem>(m, "InvalidProblem", PyExc_ValueError);
  m.def(
      "built_with", [] { return OSDP_TORCH_VERSION; },
      "The version of torch that the extension was compiled against.");
  m.def("solve", &solve, "options"_a, "limit"_a, "method"_a, "time_limit_s"_a, "names"_a, "gap"_a,
        "state_bytes"_a);
  m.def("solve_table", &solve_table, "table"_a, "limit"_a, "method"_a, "time_limit_s"_a, "names"_a, "gap"_a,
        "state_bytes"_a);
  m.def(
      "check_table",
      [](const py::buffer& table, int64_t limit, const std::vector<int>& choices, int64_t time,
         int64_t memory, int64_t lower_bound, std::pair<int64_t, int64_t> multiplier) {
        const py::buffer_info info = table.request();
        return check_view(view_table(info, limit), choices, time, memory, lower_bound, multiplier);
      },
      "table"_a, "limit"_a, "choices"_a, "time"_a, "memory"_a, "lower_bound"_a, "multiplier"_a);
  m.def(
      "check",
      [](const Pairs& options, int64_t limit, const std::vector<int>& choices, int64_t time, int64_t memory,
         int64_t lower_bound, std::pair<int64_t, int64_t> multiplier) {
        const Problem problem = make_problem(options, limit, {});
        return check_view(problem, choices, time, memory, lower_bound, multiplier);
      },
      "options"_a, "limit"_a, "choices"_a, "time"_a, "memory"_a, "lower_bound"_a, "multiplier"_a);
  m.def(
      "proven_lower_bound",
      [](const Pairs& options, int64_t limit, std::pair<int64_t, int64_t> multiplier) {
        const Problem p = make_problem(options, limit, {});
        validate(p);
        return proven_lower_bound(p, {multiplier.first, multiplier.second});
      },
      "options"_a, "limit"_a, "multiplier"_a);
}
