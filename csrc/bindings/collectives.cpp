// Bindings of csrc/comm and csrc/faults: collectives on a group's lane, and the group's heartbeat, parts and
// end.
#include <ATen/core/Tensor.h>
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "comm/c10d.hpp"
#include "comm/collectives.hpp"
#include "comm/ending.hpp"
#include "comm/lane.hpp"
#include "comm/parts.hpp"
#include "comm/transports/shared_memory.hpp"
#include "faults/heartbeat.hpp"
#include "faults/process.hpp"

namespace py = pybind11;
namespace comm = osdp::comm;
namespace faults = osdp::faults;

namespace {

// The collectives of a group, executed on its lane. `group` must be one that only this package uses.
class LaneCollectives {
 public:
  LaneCollectives(const std::string& group, const at::Device& device)
      : lane_(comm::Lane::of(group, device)),
        collectives_(comm::Collectives::over(*lane_, group, device)),
        device_(device) {}

  void all_gather(const comm::Tensors& outputs, const comm::Tensors& inputs, const std::string& label) const {
    run(label, outputs, [&] { collectives_->all_gather(outputs, inputs); });
  }
  void reduce_scatter_mean(const comm::Tensors& outputs, const comm::Tensors& inputs) const {
    run("reduce-scatter", outputs, [&] { collectives_->reduce_scatter_mean(outputs, inputs); });
  }
  void all_reduce_mean(const comm::Tensors& tensors) const {
    run("all-reduce", tensors, [&] { collectives_->all_reduce_mean(tensors); });
  }
  void broadcast(const comm::Tensors& tensors) const {
    run("broadcast", tensors, [&] { collectives_->broadcast(tensors); });
  }
  // Every rank's bytes, in rank order. `label` names the purpose and must be equal on all ranks.
  py::list all_bytes(const std::string& label, const std::string& mine) const {
    std::vector<std::string> all;
    {
      py::gil_scoped_release no_gil;
      lane_->submit(faults::task_name(label), [&] { all = collectives_->all_texts(mine, device_); }).wait();
    }
    py::list result;
    for (const std::string& text : all) result.append(py::bytes(text));
    return result;
  }
  // Does not wait: the caller may continue to compute.
  comm::Work submit_all_reduce_mean(const comm::Tensors& tensors) const {
    return lane_->submit(named("all-reduce", tensors), [collectives = collectives_, tensors] {
      collectives->all_reduce_mean(tensors);
      for (const at::Tensor& tensor : tensors) comm::Lane::keep(tensor);
    });
  }
  std::string transport() const { return collectives_->transport(); }
  bool has_memory() const { return collectives_->has_memory(device_); }

 private:
  static faults::TaskNamePtr named(const std::string& label, const comm::Tensors& tensors) {
    faults::Digest sizes;
    for (const at::Tensor& tensor : tensors) sizes.add(uint64_t{tensor.nbytes()});
    return faults::task_name(label, 0, "", sizes.value());
  }
  void run(const std::string& label, const comm::Tensors& tensors, comm::Lane::Task task) const {
    lane_->submit(named(label, tensors), std::move(task)).wait();
  }

  std::shared_ptr<comm::Lane> lane_;
  std::shared_ptr<comm::Collectives> collectives_;
  at::Device device_;
};

using Release = py::call_guard<py::gil_scoped_release>;

}  // namespace

void bind_collectives(py::module_& m) {
  py::class_<comm::Work>(m, "Work", "The end of a task on the lane.")
      .def(
          "wait", [](const comm::Work& work) { work.wait(); }, Release())
      .def_property_readonly("done", &comm::Work::done)
      .def_property_readonly("seconds", &comm::Work::seconds,
                             "How long the task ran; 0 on accelerators, and before it is done.");
  py::class_<LaneCollectives>(
      m, "Collectives",
      "What the runtime communicates with: see csrc/comm/collectives.hpp. Each call runs on "
      "the group's lane and returns when it is done there.")
      .def(py::init<const std::string&, const at::Device&>(), py::arg("group"), py::arg("device"), Release())
      .def_property_readonly("has_memory", &LaneCollectives::has_memory,
                             "Whether the backend allocates tensors for its collectives on this device")
      .def_property_readonly("transport", &LaneCollectives::transport,
                             "What carries the bytes: 'shared memory', 'sockets' or the backend's name.")
      .def("all_gather", &LaneCollectives::all_gather, py::arg("outputs"), py::arg("inputs"),
           py::arg("label") = "all-gather", Release())
      .def("reduce_scatter_mean", &LaneCollectives::reduce_scatter_mean, py::arg("outputs"),
           py::arg("inputs"), Release())
      .def("all_reduce_mean", &LaneCollectives::all_reduce_mean, py::arg("tensors"), Release())
      .def("submit_all_reduce_mean", &LaneCollectives::submit_all_reduce_mean, py::arg("tensors"), Release(),
           "The same without waiting for it.")
      .def("all_bytes", &LaneCollectives::all_bytes, py::arg("label"), py::arg("mine"),
           "Every rank's bytes, in the order of ranks. `label` says what for, alike on all ranks.")
      .def("broadcast", &LaneCollectives::broadcast, py::arg("tensors"), Release());

  m.def("start_heartbeat", &comm::start_heartbeat, py::arg("group"), py::arg("device"), py::arg("timeout_s"),
        Release(), "Finds out which rank died, hangs or goes another way; see csrc/faults/heartbeat.hpp.");
  m.def(
      "timeout_of",
      [](const std::string& group, const at::Device& device) {
        return comm::peers_of(c10d::resolve_process_group(group)->getBackend(device.type()))->timeout();
      },
      py::arg("group"), py::arg("device"), "Of the backend that a group has for a device.");
  m.def("end_group", &comm::end_group, py::arg("group"), Release(),
        "Ends a group's heartbeat, lanes and transport; see csrc/comm/ending.hpp.");
  m.def(
      "set_place",
      [](const std::string& group, const at::Device& device, const std::string& place) {
        comm::Lane::of(group, device)->health().at(place.empty() ? nullptr : faults::interned(place));
      },
      py::arg("group"), py::arg("device"), py::arg("place"),
      "Where this rank is, for the other ranks' errors: 'osdp.save'; '' where it is nowhere in particular.");
  m.def(
      "this_process", [] { return faults::Process::here().encode(); },
      "What tells this process from all others, as a text; see csrc/faults/process.hpp.");
  m.def(
      "process_ended",
      [](const std::string& text) {
        const auto process = faults::Process::decode(text);
        return process && faults::life_of(*process) == faults::Life::Ended;
      },
      py::arg("process"), "Whether that process was on this host and has ended.");
  m.def(
      "connect_part",
      [](const std::string& part, const at::Device& device) {
        const auto lane = comm::Lane::apart(device);
        const auto collectives = comm::Collectives::over(*lane, part, device);
        if (device.is_cpu()) return;  // Collectives::over has connected the ranks
        const at::Tensor one = at::zeros({1}, device);
        lane->submit(faults::task_name("connecting the ranks"), [&] { collectives->all_reduce_sum(one); })
            .wait();
      },
      py::arg("part"), py::arg("device"), Release(),
      "Makes the transport of a group of some of a lane's ranks, by those ranks alone. Collective.");
  m.def("set_ranks_of_part", &comm::set_ranks_of_part, py::arg("group"), py::arg("ranks"),
        "Who the ranks of a line or column are among all, for errors; see csrc/comm/parts.hpp.");
  m.attr("HEARTBEAT_MARGIN_S") = faults::Heartbeat::kMargin_s;
  m.def(
      "shutdown",
      [](const std::string& last_words) {
        faults::Heartbeat::shutdown(last_words);
        comm::Lane::shutdown();
      },
      py::arg("last_words") = "", Release(),
      "Ends the communication threads. `last_words`: the exception that ends this process, for the other "
      "ranks.");
  m.def("host_identity", &comm::host_identity,
        "Machine, boot, network namespace and name of this host: the same for ranks that share it");
}
