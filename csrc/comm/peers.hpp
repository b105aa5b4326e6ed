// Peers: the other ranks of a group as its backend (gloo) reaches them. What transports are agreed on over,
// and what carries messages where no transport of our own can. See c10d.cpp.
#pragma once

#include <chrono>
#include <memory>

#include "comm/ring_schedule.hpp"
#include "faults/abortable.hpp"

namespace osdp::runtime {

class Peers {
 public:
  // One that is on its way. Its memory must stay until it is complete or this is destroyed.
  using Message = AbortableWait;

  virtual ~Peers() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  virtual std::chrono::milliseconds timeout() const = 0;
  // Messages between two ranks match in the order of their calls, those of one tag. Throw std::exception.
  virtual std::shared_ptr<Message> send(const Range& range, int to, int tag) = 0;
  virtual std::shared_ptr<Message> receive(const Range& range, int from, int tag) = 0;
};

}  // namespace osdp::runtime
