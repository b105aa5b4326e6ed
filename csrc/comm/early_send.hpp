// EarlySend: the first messages of a collective that has not begun yet.
//
// Note [Sent ahead]
// A collective ends on a rank when its last message has arrived. By then the link to the next rank has been
// idle since this rank sent its own last message, and it stays idle while the thread wakes up, releases the
// task's memory and begins the next task: a millisecond or two on a busy host, a hundred times per step. But
// the first messages of a collective are available before it begins: a rank's own rows, or a part of its own
// gradient. So a task can be submitted with its early send, the first messages of its first schedule. While a
// schedule waits for its last messages, its transport sends the next task's early send after its own
// messages. This takes no memory: the messages stay in the receiver's kernel buffers until the receiver
// begins the collective too. With two ranks the early send is everything that a rank sends in a gather or a
// reduction.
#pragma once

#include <memory>
#include <vector>

#include "comm/ring_schedule.hpp"
#include "faults/task_name.hpp"

namespace osdp::comm {

class Transport;

struct EarlySend {
  const Transport* transport = nullptr;  // runs the schedule; null: nothing can be sent ahead
  std::vector<Range> messages;           // the schedule's first messages, without empty ones
  std::shared_ptr<const void> kept;      // owns the messages' memory
};

// The part of the lane's next task that transports need.
struct Upcoming {
  faults::TaskNamePtr name;
  EarlySend early;
};

}  // namespace osdp::comm
