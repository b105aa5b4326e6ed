// Peers: point-to-point messages to the other ranks of a group through its backend (gloo). Used to negotiate
// transports, and to carry messages if no transport of our own is possible. See c10d.cpp.
#pragma once

#include <chrono>
#include <memory>

#include "comm/ring_schedule.hpp"
#include "faults/abortable.hpp"

namespace osdp::comm {

class Peers {
 public:
  // A message in flight. Its memory must stay valid until the message is complete or this is destroyed.
  using Message = faults::AbortableWait;

  virtual ~Peers() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  virtual std::chrono::milliseconds timeout() const = 0;
  // Messages of one tag between two ranks match in the order of the calls. Throw std::exception.
  virtual std::shared_ptr<Message> send(const Range& range, int to, int tag) = 0;
  virtual std::shared_ptr<Message> receive(const Range& range, int from, int tag) = 0;
};

}  // namespace osdp::comm
