// Bindings of the knapsack problem (csrc/search/knapsack) and its checker: osdp.solve.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/search/budget.hpp"
#include "search/certificate/knapsack_certificate.hpp"
#include "search/certificate/lower_bound_check.hpp"
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

Solution solve_view(const ProblemView& problem, const std::string& method, Budget budget) {
  osdp::Signals signals;
  budget.interrupted = signals.ask();
  Solution s;
  {
    py::gil_scoped_release release;
    s = method == "exact" ? solve_exact(problem, budget)
                          : solve_dfs(problem, budget, method == "dfs-smallest-first");
    if (method != "exact") s.multiplier = price_of_memory(problem);
  }
  signals.end(!s.choices.empty());
  return s;
}

Solution solve(const Pairs& options, int64_t limit, const std::string& method, double time_limit_s,
               std::vector<std::string> names, double gap, int64_t state_bytes) {
  const Problem problem = make_problem(options, limit, std::move(names));
  return solve_view(problem, method, {time_limit_s, {}, gap, state_bytes});
}

// A C-contiguous int64 array of shape (operators, options, 2), not copied.
ProblemView view_table(const py::buffer_info& table, int64_t limit) {
  static_assert(sizeof(Option) == 2 * sizeof(int64_t));
  return {static_cast<const Option*>(table.ptr), static_cast<size_t>(table.shape.at(0)),
          static_cast<size_t>(table.shape.at(1)), limit};
}

Solution solve_table(const py::buffer& table, int64_t limit, const std::string& method, double time_limit_s,
                     const std::vector<std::string>& names, double gap, int64_t state_bytes) {
  const py::buffer_info info = table.request();
  ProblemView problem = view_table(info, limit);
  problem.names = names;
  return solve_view(problem, method, {time_limit_s, {}, gap, state_bytes});
}

std::string check_view(const ProblemView& problem, const std::vector<int>& choices, int64_t time,
                       int64_t memory, int64_t lower_bound, std::pair<int64_t, int64_t> multiplier) {
  py::gil_scoped_release release;
  return check_all(problem, choices, {time, memory, lower_bound, {multiplier.first, multiplier.second}});
}

}  // namespace

void bind_knapsack(py::module_& m) {
  py::class_<Solution>(m, "Solution")
      .def_property_readonly("status",
                             [](const Solution& s) {
                               return s.status == Status::Optimal    ? "optimal"
                                      : s.status == Status::Feasible ? "feasible"
                                                                     : "infeasible";
                             })
      .def_readonly("choices", &Solution::choices)
      .def_readonly("time", &Solution::time_ps)
      .def_readonly("memory", &Solution::memory_bytes)
      .def_readonly("lower_bound", &Solution::lower_bound_ps)
      .def_readonly("smallest_limit", &Solution::smallest_limit_bytes)
      .def_property_readonly(
          "multiplier",
          [](const Solution& s) { return std::pair(s.multiplier.numerator, s.multiplier.denominator); })
      .def_property_readonly("seconds", [](const Solution& s) { return s.statistics.seconds; })
      .def_property_readonly("nodes", [](const Solution& s) { return s.statistics.nodes; })
      .def_property_readonly("groups", [](const Solution& s) { return s.statistics.groups; })
      .def_property_readonly("rounds", [](const Solution& s) { return s.statistics.rounds; });
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
