// Head: what a rank sends first in a collective that has not begun yet.
//
// Note [Sent ahead]
// A collective ends on a rank when its last message has come. The link to the next rank has then been quiet
// since this rank sent its own last one, and stays so while the thread wakes, lets go of the task's memory
// and begins the next: a millisecond or two on a busy host, a hundred times a step. But what a rank sends
// first it has before the collective begins: its own rows, or a part of its own gradient. So a task can be
// submitted with its head, the first messages of its first course, and while a course waits for its last
// messages its link sends the next task's head, behind its own. No memory is taken for it: the other rank's
// messages stay in its system's buffers until it begins the collective too. With two ranks the head is all
// that a rank sends in a gather or a reduction.
#pragma once

#include <string>
#include <vector>

#include "runtime/course.hpp"

namespace osdp::runtime {

class Link;

struct Head {
  Head() = default;
  Head(Head&&) = default;  // the messages stay parts of `whole`; those of a copy would not be
  Head& operator=(Head&&) = default;

  const Link* link = nullptr;     // which will carry the course; null: nothing can be sent ahead
  std::vector<at::Tensor> whole;  // what the messages are parts of
  std::vector<Range> messages;    // the course's first, those that are empty left out
};

// The task that the lane runs next, as far as links are concerned.
struct Upcoming {
  std::string label;
  Head head;
};

}  // namespace osdp::runtime
