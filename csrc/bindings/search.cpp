// Bindings of csrc/search: osdp._search. Integers in, dictionaries out; osdp/searching.py gives them names and types.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "search/branch.hpp"
#include "search/certificate.hpp"

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

// Ctrl-C: asks Python for signals now and then. The search runs without the GIL and takes it for the question only.
Budget make_budget(double time_limit_s) {
  return {time_limit_s, [] {
            py::gil_scoped_acquire gil;
            return PyErr_CheckSignals() != 0;
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

}  // namespace

PYBIND11_MODULE(_search, m) {
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
