// Bindings of units and simulated steps (csrc/search/simulate).
#include "bindings/names.hpp"
#include "search/problem/problem.hpp"
#include "search/simulate/play_plan.hpp"

namespace py = pybind11;
using namespace py::literals;
using namespace osdp::search;

namespace {

Place make_place(int64_t bytes, int64_t gathered_bytes, int dtype, bool mixed, int block, int gathered_at,
                 int64_t modules, bool traced, const std::vector<std::pair<int, int>>& calls,
                 int64_t repeats) {
  Place p{true, bytes, gathered_bytes, dtype, mixed, block, gathered_at, modules, traced, {}, repeats};
  for (const auto& [first, last] : calls) p.calls.push_back({first, last});
  return p;
}

void bind_played(py::module_& m) {
  py::class_<MemoryPoint>(m, "MemoryPoint", "From this moment on.")
      .def_readonly("time_ps", &MemoryPoint::time_ps)
      .def_readonly("bytes", &MemoryPoint::bytes);
  py::class_<PlayedStep>(m, "PlayedStep")
      .def_readonly("step_ps", &PlayedStep::step_ps)
      .def_readonly("only_computing_ps", &PlayedStep::only_computing_ps)
      .def_readonly("both_ps", &PlayedStep::both_ps)
      .def_readonly("only_communicating_ps", &PlayedStep::only_communicating_ps)
      .def_readonly("optimizer_ps", &PlayedStep::optimizer_ps)
      .def_readonly("peak_bytes", &PlayedStep::peak_bytes)
      .def_readonly("memory", &PlayedStep::memory)
      .def_readonly("tails_ps", &PlayedStep::tails_ps,
                    "Of each backward, the end in which it waits for communication alone.")
      .def_readonly("passes_ps", &PlayedStep::passes_ps,
                    "Forward and backward of each micro-batch that was played: of many, the first three.");
  const auto name = [](const auto& names, auto code) { return names[static_cast<size_t>(code)]; };
  py::class_<TimelineEvent>(m, "TimelineEvent")
      .def_property_readonly("resource",
                             [name](const TimelineEvent& e) { return name(kResources, e.resource); })
      .def_property_readonly("action",
                             [name](const TimelineEvent& e) { return name(StepEvent::kKinds, e.action); })
      .def_property_readonly("phase", [name](const TimelineEvent& e) { return name(kStepPhases, e.phase); })
      .def_readonly("name", &TimelineEvent::name)
      .def_readonly("begin_ps", &TimelineEvent::begin_ps)
      .def_readonly("end_ps", &TimelineEvent::end_ps);
  py::class_<Timeline>(m, "Timeline")
      .def_readonly("step", &Timeline::step)
      .def_readonly("events", &Timeline::events)
      .def_readonly("largest_peak_bytes", &Timeline::largest_peak_bytes);
}

}  // namespace

void bind_simulate(py::module_& m) {
  py::class_<Place>(m, "Place", "What of an operator decides with whom it travels.")
      .def(py::init<>(), "Of an operator without parameters.")
      .def(py::init(&make_place), py::kw_only(), "bytes"_a, "gathered_bytes"_a, "dtype"_a, "mixed"_a,
           "block"_a, "gathered_at"_a, "modules"_a, "traced"_a, "calls"_a, "repeats"_a);
  py::class_<Manner>(m, "Manner", "How the runtime carries plans out.")
      .def(py::init([](std::vector<Place> places, int64_t small_unit_bytes, bool separate_reductions,
                       bool enqueue, Collective delay, int64_t stolen_permille) {
             return Manner{
                 std::move(places), small_unit_bytes, {separate_reductions, enqueue}, delay, stolen_permille};
           }),
           py::kw_only(), "places"_a, "small_unit_bytes"_a, "separate_reductions"_a, "enqueue"_a, "delay"_a,
           "stolen_permille"_a);
  bind_played(m);
  m.def(
      "group_units",
      [](const std::vector<Place>& places, const std::vector<PlainPlan::Choice>& choices,
         int64_t bucket_bytes, int64_t small, int64_t most) {
        if (choices.size() != places.size()) throw InvalidProblem("choices are not beside the operators");
        std::vector<Sharding> shardings;
        for (const auto& c : choices) shardings.push_back({c.mode, c.granularity});
        return group_units(places, shardings, bucket_bytes, small, most);
      },
      "places"_a, "choices"_a, "bucket_bytes"_a, "small"_a, "most"_a);
}
