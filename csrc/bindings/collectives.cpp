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
#include "comm/in_memory.hpp"
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
    for (const at::Tensor& t : tensors)
      OSDP_CHECK(comm::in_memory(t), Sharding, "OSDP: ", label, " of a tensor ", t.sizes(), " ",
                 t.scalar_type(), " without values: a fake or meta tensor, or a subclass that wraps others.");
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
  py::class_<comm::Work>(m, "Work", "A task submitted to a lane.")
      .def(
          "wait", [](const comm::Work& work) { work.wait(); }, Release(),
          "Blocks until the task has run (on an accelerator: makes the current stream wait for it). Raises "
          "the task's exception.")
      .def_property_readonly("done", &comm::Work::done, "Whether the task has run, without blocking.")
      .def_property_readonly("seconds", &comm::Work::seconds,
                             "Seconds that the task ran; 0 on accelerators, and before it is done.");
  py::class_<LaneCollectives>(
      m, "Collectives",
      "Collectives of a process group (by name; only this package may use the group) on its lane: see "
      "csrc/comm/collectives.hpp. Every rank must make the same calls. Each call blocks until it has run; "
      "raises "
      "RankError or OrderError if another rank died, hangs or runs another collective. Tensors are flat, "
      "contiguous and on `device`.")
      .def(py::init<const std::string&, const at::Device&>(), py::arg("group"), py::arg("device"), Release())
      .def_property_readonly("has_memory", &LaneCollectives::has_memory,
                             "Whether the backend can allocate tensors for its collectives on this device.")
      .def_property_readonly("transport", &LaneCollectives::transport,
                             "What carries the bytes: 'shared memory', 'sockets' or the backend's name.")
      .def("all_gather", &LaneCollectives::all_gather, py::arg("outputs"), py::arg("inputs"),
           py::arg("label") = "all-gather", Release(),
           "Gathers all ranks' inputs[i] [n] into outputs[i] [world * n], in rank order, for each i. `label` "
           "names the collective in errors and must be equal on all ranks.")
      .def("reduce_scatter_mean", &LaneCollectives::reduce_scatter_mean, py::arg("outputs"),
           py::arg("inputs"), Release(),
           "outputs[i] [n] = this rank's chunk of the mean over ranks of inputs[i] [world * n], for each i. "
           "The inputs are overwritten.")
      .def("all_reduce_mean", &LaneCollectives::all_reduce_mean, py::arg("tensors"), Release(),
           "Replaces each tensor by its mean over ranks.")
      .def("submit_all_reduce_mean", &LaneCollectives::submit_all_reduce_mean, py::arg("tensors"), Release(),
           "all_reduce_mean without blocking: the tensors hold the means once the Work is done.")
      .def("all_bytes", &LaneCollectives::all_bytes, py::arg("label"), py::arg("mine"),
           "Every rank's bytes, in rank order; lengths may differ. `label` names the purpose in errors and "
           "must be "
           "equal on all ranks.")
      .def("broadcast", &LaneCollectives::broadcast, py::arg("tensors"), Release(),
           "Replaces each tensor by rank 0's, of any dtype and layout.");

  m.def("start_heartbeat", &comm::start_heartbeat, py::arg("group"), py::arg("device"), py::arg("timeout_s"),
        Release(),
        "Starts the thread that detects ranks that died, hang or diverged; once per group and device. "
        "`timeout_s`: the group's, in seconds. See csrc/faults/heartbeat.hpp.");
  m.def(
      "timeout_of",
      [](const std::string& group, const at::Device& device) {
        return comm::peers_of(c10d::resolve_process_group(group)->getBackend(device.type()))->timeout();
      },
      py::arg("group"), py::arg("device"), "The timeout of a group's backend for a device.");
  m.def("end_group", &comm::end_group, py::arg("group"), Release(),
        "Ends a group's heartbeat, lanes and transport, before the group is destroyed; see "
        "csrc/comm/ending.hpp.");
  m.def(
      "name_ranks",
      [](const std::string& group, const at::Device& device, std::vector<std::string> names) {
        comm::Lane::of(group, device)->health().name_ranks(faults::RankNames(std::move(names)));
      },
      py::arg("group"), py::arg("device"), py::arg("names"),
      "Sets what errors call each rank of a group, such as 'rank 6 (stage 1)'; see "
      "csrc/faults/rank_names.hpp.");
  m.def(
      "this_process", [] { return faults::Process::here().encode(); },
      "This process's identity as text (host, process id, start time); see csrc/faults/process.hpp.");
  m.def(
      "process_ended",
      [](const std::string& text) {
        const auto process = faults::Process::decode(text);
        return process && faults::life_of(*process) == faults::Life::Ended;
      },
      py::arg("process"),
      "Whether a process, given as this_process() described it, was on this host and has ended.");
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
      "Connects the ranks of a part (a line or column of ranks) for its collectives. Collective over the "
      "part.");
  m.def("set_ranks_of_part", &comm::set_ranks_of_part, py::arg("group"), py::arg("ranks"),
        "Sets the global ranks of a line's or column's ranks, which errors name; see csrc/comm/parts.hpp.");
  m.attr("HEARTBEAT_MARGIN_S") = faults::Heartbeat::kMargin_s;
  m.def(
      "shutdown",
      [](const std::string& last_words) {
        faults::Heartbeat::shutdown(last_words);
        comm::Lane::shutdown();
      },
      py::arg("last_words") = "", Release(),
      "Ends all lanes and heartbeats. `last_words`: the exception that ends this process, which is reported "
      "to "
      "the other ranks; '': none.");
  m.def("host_identity", &comm::host_identity,
        "Identifies this host (machine, boot, network namespace, name): equal for ranks on one host.");
}
