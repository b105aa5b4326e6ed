#include "faults/process.hpp"

#include <algorithm>
#include <sstream>

#ifdef __linux__
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#endif

namespace osdp::faults {

std::string Process::encode() const {
  return std::to_string(id) + ' ' + std::to_string(started) + ' ' + host;
}

std::optional<Process> Process::decode(const std::string& text) {
  std::istringstream in(text);
  Process process;
  in >> process.id >> process.started;
  in.ignore();
  if (!in || process.id <= 0) return std::nullopt;
  std::getline(in, process.host);
  return process;
}

#ifdef __linux__

namespace {

struct Status {
  char state = 0;
  uint64_t started = 0;
};

std::optional<Status> status_of(int64_t id) {
  std::ifstream file("/proc/" + std::to_string(id) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  std::istringstream in(line.substr(std::min(line.size(), line.rfind(')') + 1)));  // a name may hold anything
  Status status;
  std::string skipped;
  in >> status.state;
  for (int field = 4; field < 22; ++field) in >> skipped;
  in >> status.started;
  return in ? std::optional(status) : std::nullopt;
}

std::string host_of_processes() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char processes[64] = {};
  if (boot.empty() || readlink("/proc/self/ns/pid", processes, sizeof processes - 1) < 0) return "";
  return boot + " " + processes;
}

}  // namespace

Process Process::here() {
  const auto status = status_of(getpid());
  return {host_of_processes(), getpid(), status ? status->started : 0};
}

Life life_of(const Process& process) {
  static const std::string here = host_of_processes();
  if (here.empty() || process.host != here) return Life::Unseen;
  if (kill(static_cast<pid_t>(process.id), 0) != 0 && errno == ESRCH) return Life::Ended;
  const auto status = status_of(process.id);
  if (!status) return Life::Unseen;
  const bool same = process.started == 0 || process.started == status->started;
  return same && status->state != 'Z' && status->state != 'X' ? Life::Runs : Life::Ended;
}

#else

Process Process::here() { return {}; }
Life life_of(const Process&) { return Life::Unseen; }

#endif

}  // namespace osdp::faults
