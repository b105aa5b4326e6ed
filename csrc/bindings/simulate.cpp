// Bindings of the simulator (csrc/search/simulate/simulate.hpp), in osdp._search.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/plain_plan.hpp"
#include "search/simulate/simulate.hpp"
#include "search/simulate/step_of_plan.hpp"

namespace py = pybind11;
using namespace py::literals;
using namespace osdp::search;

namespace {

// Operators, the spans of the modules that gather them, calls of each of these in a forward.
using Unit = std::tuple<std::string, std::vector<int>, std::vector<std::pair<int, int>>, int64_t>;

std::vector<PlannedUnit> planned(const std::vector<Unit>& units) {
  std::vector<PlannedUnit> out;
  for (const auto& [name, operators, calls, repeats] : units) {
    PlannedUnit& u = out.emplace_back();
    u.name = name;
    u.operators = operators;
    for (const auto& [first, last] : calls) u.calls.push_back({first, last});
    u.repeats = repeats;
  }
  return out;
}

const char* action(StepEvent::Kind kind) {
  switch (kind) {
    case StepEvent::Kind::Compute:
      return "compute";
    case StepEvent::Kind::Gather:
      return "gather";
    case StepEvent::Kind::Reduce:
      return "reduce";
    case StepEvent::Kind::Average:
      return "average";
    case StepEvent::Kind::ReduceBucket:
      return "all_reduce";
  }
  return "";
}

const char* resource(const Step& step, StepEvent::Kind kind) {
  switch (kind) {
    case StepEvent::Kind::Compute:
      return "computation";
    case StepEvent::Kind::Gather:
      return "communication";
    case StepEvent::Kind::Reduce:
    case StepEvent::Kind::ReduceBucket:
      return step.lanes.separate_reductions ? "reductions" : "communication";
    case StepEvent::Kind::Average:
      return "between hosts";
  }
  return "";
}

const char* phase_name(StepPhase phase) {
  switch (phase) {
    case StepPhase::Forward:
      return "forward";
    case StepPhase::Recompute:
      return "recompute";
    case StepPhase::Backward:
      return "backward";
    case StepPhase::Optimizer:
      return "optimizer";
  }
  return "";
}

const std::string& name_of(const Step& step, const StepEvent& event) {
  static const std::string optimizer = "optimizer";
  switch (event.kind) {
    case StepEvent::Kind::Compute:
      return event.what < 0 ? optimizer : step.operators[event.what].name;
    case StepEvent::Kind::ReduceBucket:
      return step.buckets[event.what].name;
    default:
      return step.units[event.what].name;
  }
}

py::dict simulate(const Model& model, const Request& request, std::pair<int64_t, int64_t> batch,
                  const std::vector<std::tuple<int, int64_t, int64_t, int>>& choices,
                  const std::vector<int>& blocks, const std::vector<Unit>& units, int64_t prefetch,
                  std::pair<bool, bool> lanes, std::pair<double, double> delay, int64_t stolen_permille,
                  bool timeline) {
  const Step step = step_of(model, request, plain_plan(batch, choices, blocks), planned(units), prefetch,
                            {delay.first, delay.second}, {lanes.first, lanes.second});
  const PlayedStep played = play(step, stolen_permille);
  py::dict result("step_ps"_a = played.step_ps, "only_computing_ps"_a = played.only_computing_ps,
                  "both_ps"_a = played.both_ps, "only_communicating_ps"_a = played.only_communicating_ps,
                  "optimizer_ps"_a = played.optimizer_ps, "peak_bytes"_a = played.peak_bytes);
  if (!timeline) return result;
  py::list events;
  for (const StepEvent& e : played.events) {
    events.append(py::make_tuple(resource(step, e.kind), action(e.kind), phase_name(e.phase),
                                 name_of(step, e), e.begin_ps, e.end_ps));
  }
  py::list memory;
  for (const MemoryPoint& m : played.memory) memory.append(py::make_tuple(m.time_ps, m.bytes));
  result["events"] = events;
  result["memory"] = memory;
  return result;
}

}  // namespace

void bind_simulate(py::module_& m) {
  m.def("simulate", &simulate, "model"_a, "request"_a, "batch"_a, "choices"_a, "blocks"_a, "units"_a,
        "prefetch"_a, "lanes"_a, "delay"_a, "stolen_permille"_a, "timeline"_a);
}
