// RingSchedule: describes the messages of one collective on a ring of ranks. Ring computes it (ring.cpp),
// transports execute it (transport.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "elementwise/elementwise.hpp"

namespace osdp::comm {

// The element type of a range: its size and, if it can be summed, its dtype.
struct Element {
  int32_t bytes = 1;
  std::optional<elementwise::DType> dtype;
};

// A contiguous, non-owning range of elements in host memory: the contents of one message. With count <= 0 (a
// segment past the end of an array) there is no message.
struct Range {
  char* data = nullptr;
  int64_t count = 0;
  Element element;

  bool empty() const { return count <= 0; }
  int64_t bytes() const { return count * element.bytes; }
  Range part(int64_t begin, int64_t length) const { return {data + begin * element.bytes, length, element}; }
};

// `steps` rounds of `segments` messages each, the same on all ranks: in each, every rank sends to the next
// rank. Message (t, s) can be sent when (t-1, s) has been taken; messages arrive in the order sent.
struct RingSchedule {
  int64_t steps = 0, segments = 0;
  int64_t window = 0;  // messages that may be in flight to this rank at once
  std::function<Range(int64_t step, int64_t segment)> to_send;
  // A range with the length and element type of the arriving message; empty if none arrives.
  std::function<Range(int64_t step, int64_t segment)> counterpart;
  // Where a transport without buffers of its own stores the message until it is taken. Valid for `window`
  // messages at once.
  std::function<Range(int64_t step, int64_t segment)> inbox;
  // Consumes the message, which is in its inbox or in the transport's memory and is invalid afterwards.
  std::function<void(int64_t step, int64_t segment, const void* message)> take;

  int64_t messages() const { return steps * segments; }
  Range sent(int64_t i) const { return to_send(i / segments, i % segments); }
  Range expected(int64_t i) const { return counterpart(i / segments, i % segments); }
};

}  // namespace osdp::comm
