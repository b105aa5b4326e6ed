// Bindings of csrc/search/pipeline, and of a collective's time.
#include "bindings/names.hpp"
#include "search/pipeline/part.hpp"
#include "search/pipeline/schedule.hpp"
#include "search/problem/collective_time.hpp"
#include "search/problem/problem.hpp"

template <>
struct osdp::Names<osdp::search::PipelineSchedule> {
  static constexpr const char* what = "schedule";
  static constexpr size_t count = osdp::search::kPipelineSchedules.size();
  static const char* at(size_t code) { return osdp::search::kPipelineSchedules.at(code); }
};
template <>
struct pybind11::detail::type_caster<osdp::search::PipelineSchedule>
    : pybind11::detail::name_caster<osdp::search::PipelineSchedule> {};

namespace py = pybind11;
using namespace py::literals;
using namespace osdp::search;

void bind_pipeline(py::module_& m) {
  m.attr("SCHEDULES") = osdp::names_of<PipelineSchedule>();
  py::class_<StageTimes>(m, "StageTimes", "What a stage of a pipeline takes, in picoseconds.")
      .def(py::init([](int64_t first_forward_ps, int64_t forward_ps, int64_t backward_ps,
                       int64_t last_backward_ps, int64_t optimizer_ps, int64_t send_activations_ps,
                       int64_t send_gradients_ps, int64_t backward_tail_ps, int64_t last_backward_tail_ps) {
             return StageTimes{first_forward_ps,  forward_ps,       backward_ps,
                               last_backward_ps,  optimizer_ps,     send_activations_ps,
                               send_gradients_ps, backward_tail_ps, last_backward_tail_ps};
           }),
           py::kw_only(), "first_forward_ps"_a, "forward_ps"_a, "backward_ps"_a, "last_backward_ps"_a,
           "optimizer_ps"_a, "send_activations_ps"_a = 0, "send_gradients_ps"_a = 0, "backward_tail_ps"_a = 0,
           "last_backward_tail_ps"_a = 0)
      .def_readonly("first_forward_ps", &StageTimes::first_forward_ps)
      .def_readonly("forward_ps", &StageTimes::forward_ps)
      .def_readonly("backward_ps", &StageTimes::backward_ps)
      .def_readonly("last_backward_ps", &StageTimes::last_backward_ps)
      .def_readonly("optimizer_ps", &StageTimes::optimizer_ps)
      .def_readonly("backward_tail_ps", &StageTimes::backward_tail_ps)
      .def_readonly("last_backward_tail_ps", &StageTimes::last_backward_tail_ps);
  py::class_<PassEvent>(m, "PassEvent", "One pass of one micro-batch through a stage.")
      .def_readonly("stage", &PassEvent::stage)
      .def_readonly("micro_batch", &PassEvent::micro_batch)
      .def_readonly("forward", &PassEvent::forward)
      .def_readonly("begin_ps", &PassEvent::begin_ps)
      .def_readonly("end_ps", &PassEvent::end_ps);
  py::class_<PlayedSchedule>(m, "PlayedSchedule")
      .def_readonly("step_ps", &PlayedSchedule::step_ps)
      .def_readonly("busy_ps", &PlayedSchedule::busy_ps)
      .def_readonly("events", &PlayedSchedule::events);
  m.def("play_schedule", &play_schedule, "schedule"_a, "stages"_a, "micro_batches"_a, "record"_a = false,
        "cores"_a = SharedCores{1000}, "A step of a pipeline: csrc/search/pipeline/schedule.hpp.");
  m.def("most_in_flight", &most_in_flight, "schedule"_a, "stages"_a, "stage"_a, "micro_batches"_a,
        "Micro-batches whose activations a stage holds at most.");
  m.def(
      "part_of_model",
      [](const Model& model, const std::vector<int>& chosen, int64_t input_bytes_per_sample,
         int64_t buffer_bytes) { return part_of(model, chosen, input_bytes_per_sample, buffer_bytes); },
      "model"_a, "chosen"_a, "input_bytes_per_sample"_a, "buffer_bytes"_a,
      "The operators at these positions, and the blocks that they are in.");
  m.def(
      "part_of_manner",
      [](const Manner& manner, const std::vector<int>& chosen) { return part_of(manner, chosen); },
      "manner"_a, "chosen"_a);
  m.def(
      "collective_s",
      [](const Device& device, const std::string& kind, int64_t bytes) {
        const Collectives all(device);
        if (kind == "all_gather") return all.gather(osdp::Mode::FullShard).seconds(bytes);
        if (kind == "reduce_scatter") return all.reduce(osdp::Mode::FullShard).seconds(bytes);
        if (kind == "all_reduce") return all.all_reduce().seconds(bytes);
        throw InvalidProblem("collective '" + kind + "' is unknown");
      },
      "device"_a, "kind"_a, "bytes"_a, "Seconds of one collective of so many bytes over all ranks.");
}
