// Process: identifies a rank's process, and tells other ranks of its host whether it still runs.
//
// Note [A dead rank's children]
// When a rank dies, its connections close, except those that a forked child (a DataLoader worker) has
// inherited and keeps open. A dead rank then looks like one that hangs. Therefore:
//   - our own sockets: the child closes them right after the fork (socket.cpp), so a death is noticed on
//     every host;
//   - shared memory: the owner holds a lock that children do not inherit (shared_memory.hpp);
//   - everything, including gloo's sockets: waiting ranks of the same host check whether the process still
// exists (heartbeat.cpp), and report a death to all ranks through the store. So it takes the timeout only
// over gloo's sockets, and only if no other rank waits on the dead rank's host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace osdp::faults {

struct Process {
  std::string host;  // boot id and PID namespace; "": unknown
  int64_t id = 0;
  uint64_t started = 0;  // ticks since boot: distinguishes processes that reuse a PID

  static Process here();
  std::string encode() const;
  static std::optional<Process> decode(const std::string& text);  // nullopt: not a process
};

enum class Life { Runs, Ended, Unseen };  // Unseen: it is on another host
Life life_of(const Process& process);

}  // namespace osdp::faults
