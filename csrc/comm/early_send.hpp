// EarlySend: what a rank sends first in a collective that has not begun yet.
//
// Note [Sent ahead]
// A collective ends on a rank when its last message has come. The link to the next rank has then been quiet
// since this rank sent its own last one, and stays so while the thread wakes, lets go of the task's memory
// and begins the next: a millisecond or two on a busy host, a hundred times a step. But what a rank sends
// first it has before the collective begins: its own rows, or a part of its own gradient. So a task can be
// submitted with its early send, the first messages of its first schedule, and while a schedule waits for its
// last messages its transport sends the next task's early send, behind its own. No memory is taken for it:
// the other rank's messages stay in its system's buffers until it begins the collective too. With two ranks
// the early send is all that a rank sends in a gather or a reduction.
#pragma once

#include <memory>
#include <vector>

#include "comm/ring_schedule.hpp"
#include "faults/task_name.hpp"

namespace osdp::runtime {

class Transport;

struct EarlySend {
  const Transport* transport = nullptr;  // which will carry the schedule; null: nothing can be sent ahead
  std::vector<Range> messages;           // the schedule's first, those that are empty left out
  std::shared_ptr<const void> kept;      // whose memory the messages are
};

// The task that the lane runs next, as far as transports are concerned.
struct Upcoming {
  TaskNamePtr name;
  EarlySend early;
};

}  // namespace osdp::runtime
