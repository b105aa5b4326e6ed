// Bindings of units (csrc/search/simulate/unit_grouping.hpp) and of playing many plans
// (csrc/search/heuristics/rehearsal.hpp), in osdp._search.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/found.hpp"
#include "search/heuristics/polish.hpp"
#include "search/problem/problem.hpp"

namespace py = pybind11;
using namespace py::literals;
using namespace osdp::search;

namespace {

Candidacy candidacy(std::pair<int64_t, int64_t> batch, std::vector<int> choices,
                    const std::vector<int>& blocks) {
  Candidacy plan{{batch.first, batch.second}, {std::move(choices), {}}};
  for (int r : blocks) plan.decision.ways.push_back(static_cast<Recompute>(r));
  return plan;
}

// `method` of the plan that Python gives, which is checked first.
template <typename Method>
auto of_plan(Method method) {
  return [method](Rehearsal& r, std::pair<int64_t, int64_t> batch, std::vector<int> choices,
                  const std::vector<int>& blocks) {
    const Candidacy plan = candidacy(batch, std::move(choices), blocks);
    r.check(plan);
    return (r.*method)(plan);
  };
}

Place make_place(int64_t bytes, int64_t gathered_bytes, int dtype, bool mixed, int block, int gathered_at,
                 int64_t modules, bool traced, const std::vector<std::pair<int, int>>& calls,
                 int64_t repeats) {
  Place p{true, bytes, gathered_bytes, dtype, mixed, block, gathered_at, modules, traced, {}, repeats};
  for (const auto& [first, last] : calls) p.calls.push_back({first, last});
  return p;
}

}  // namespace

void bind_rehearsal(py::module_& m) {
  py::class_<Place>(m, "Place")
      .def(py::init<>(), "Of an operator without parameters.")
      .def(py::init(&make_place), py::kw_only(), "bytes"_a, "gathered_bytes"_a, "dtype"_a, "mixed"_a,
           "block"_a, "gathered_at"_a, "modules"_a, "traced"_a, "calls"_a, "repeats"_a);
  m.def(
      "group_units",
      [](const std::vector<Place>& places, const std::vector<std::pair<int, int64_t>>& choices,
         int64_t bucket_bytes, int64_t small, int64_t most) {
        if (choices.size() != places.size()) throw InvalidProblem("choices are not beside the operators");
        std::vector<Sharding> shardings;
        for (const auto& [mode, granularity] : choices)
          shardings.push_back({static_cast<Mode>(mode), granularity});
        return group_units(places, shardings, bucket_bytes, small, most);
      },
      "places"_a, "choices"_a, "bucket_bytes"_a, "small"_a, "most"_a);
  py::class_<Rehearsal>(m, "Rehearsal")
      .def(py::init([](const Model& model, const Request& request, std::vector<Place> places,
                       int64_t small_unit_bytes, int64_t prefetch, std::pair<bool, bool> lanes,
                       std::pair<double, double> delay, int64_t stolen_permille) {
             Manner manner{
                 std::move(places),           small_unit_bytes, prefetch, {lanes.first, lanes.second},
                 {delay.first, delay.second}, stolen_permille};
             return std::make_unique<Rehearsal>(model, request, std::move(manner));
           }),
           py::keep_alive<1, 2>(), py::keep_alive<1, 3>(), "model"_a, "request"_a, py::kw_only(), "places"_a,
           "small_unit_bytes"_a, "prefetch"_a, "lanes"_a, "delay"_a, "stolen_permille"_a)
      .def("step_ps", of_plan(&Rehearsal::step_ps), "batch"_a, "choices"_a, "blocks"_a,
           "Of a whole step, played.")
      .def("objective_ps", of_plan(&Rehearsal::objective_ps), "batch"_a, "choices"_a, "blocks"_a,
           "Of a whole step, by the objective.")
      .def("peak_bytes", of_plan(&Rehearsal::peak_bytes), "batch"_a, "choices"_a, "blocks"_a,
           "What the limit is held against.");
  m.def(
      "polish",
      [](Rehearsal& r,
         const std::vector<std::tuple<std::pair<int64_t, int64_t>, std::vector<int>, std::vector<int>>>&
             seeds,
         int64_t plays) {
        std::vector<Candidacy> plans;
        for (const auto& [batch, choices, blocks] : seeds) plans.push_back(candidacy(batch, choices, blocks));
        const Polished best = [&] {
          py::gil_scoped_release release;
          return polish(r, plans, plays);
        }();
        py::dict found = found_dict(best.plan);
        found["played_ps"] = best.played_ps;
        found["seed"] = best.seed;
        return found;
      },
      "rehearsal"_a, "seeds"_a, "plays"_a,
      "The fastest plan, played, that a local search comes to; `seeds`: batch, choices and blocks.");
}
