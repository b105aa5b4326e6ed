// RingSchedule: what goes round a ring of ranks in one collective, told as values. Rings compute it
// (ring.cpp), transports carry it (transport.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "elementwise/elementwise.hpp"

namespace osdp::runtime {

// What the elements of a range are: their length and, where they can be summed, their type.
struct Element {
  int32_t bytes = 1;
  std::optional<elementwise::DType> dtype;
};

// Elements one behind the other in this host's memory, which somebody else keeps: what one message carries.
// With count 0 (or less, past an end) nothing is carried.
struct Range {
  char* data = nullptr;
  int64_t count = 0;
  Element element;

  bool empty() const { return count <= 0; }
  int64_t bytes() const { return count * element.bytes; }
  Range part(int64_t begin, int64_t length) const { return {data + begin * element.bytes, length, element}; }
};

// `steps` rounds of `segments` messages each, the same on all ranks: every message goes from each rank to the
// next. Message (t, s) can be sent when (t-1, s) has been taken, and arrives in the order sent.
struct RingSchedule {
  int64_t steps = 0, segments = 0;
  int64_t window = 0;  // messages that may be on their way to this rank at once
  std::function<Range(int64_t step, int64_t segment)> to_send;
  // As long as the message that arrives, and of its elements; empty where none does.
  std::function<Range(int64_t step, int64_t segment)> counterpart;
  // Where the message may be put until it is taken, for transports that have no memory of their own. Good for
  // `window` messages at once.
  std::function<Range(int64_t step, int64_t segment)> inbox;
  // The message is here, in its inbox or in the transport's memory, and is gone after this.
  std::function<void(int64_t step, int64_t segment, const void* message)> take;

  int64_t messages() const { return steps * segments; }
  Range sent(int64_t i) const { return to_send(i / segments, i % segments); }
  Range expected(int64_t i) const { return counterpart(i / segments, i % segments); }
};

}  // namespace osdp::runtime
