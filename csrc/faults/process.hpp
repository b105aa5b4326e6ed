// Process: which process a rank is, and whether it still runs, as far as another rank can tell.
//
// Note [A dead rank's children]
// A rank that dies closes its connections; but not those that a forked child (a worker of a DataLoader) has
// inherited and keeps open. Then nothing closes, and a dead rank looks like one that hangs. What holds where:
//   - our own sockets: the child closes them as it is forked (socket.cpp), so they close on every host;
//   - shared memory: a lock that children do not inherit (shared_memory.hpp);
//   - everything, gloo's sockets too: ranks of the same host look whether the process still exists, while
//     they wait (heartbeat.cpp). What one of them finds, all ranks are told through the store.
// So only over gloo's sockets, and where nobody else waits on the dead rank's host, it takes the timeout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace osdp::runtime {

struct Process {
  std::string host;  // machine, boot, and namespace of process numbers; "" where that cannot be told
  int64_t id = 0;
  uint64_t started = 0;  // ticks since boot: a number is used again, but not at the same time

  static Process here();
  std::string encode() const;
  static std::optional<Process> decode(const std::string& text);  // nullopt: not a process
};

enum class Life { Runs, Ended, Unseen };  // Unseen: it is on another host
Life life_of(const Process& process);

}  // namespace osdp::runtime
