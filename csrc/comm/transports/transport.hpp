// Transport: carries messages on a ring: to the next rank, from the previous one.
#pragma once

#include <memory>

#include "comm/early_send.hpp"
#include "comm/peers.hpp"
#include "comm/ring_schedule.hpp"

namespace osdp::comm {

class Transport {
 public:
  virtual ~Transport() = default;
  // Blocks until every message of the schedule has been sent and taken. On a lane, an interruption of its
  // tracker interrupts this. Throws ConnectionLost, with the rank in the transport's group, if a neighbour
  // has ended or does not answer within the group's timeout.
  virtual void run(const RingSchedule& schedule) = 0;
  virtual const char* name() const = 0;
  virtual int64_t longest_message_bytes() const = 0;
  // How many messages should be in flight at once.
  virtual int64_t window() const = 0;
  // Up to this size an all-reduce is bound by latency: every rank sends its whole array directly to all
  // others, bypassing this transport.
  virtual int64_t latency_bytes() const { return 0; }
  // Whether it sends the next task's early send while a schedule waits for its last messages.
  virtual bool sends_early() const { return false; }
};

}  // namespace osdp::comm
