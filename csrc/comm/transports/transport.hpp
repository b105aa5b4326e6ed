// Link: carries messages round a ring: to the next rank, from the one before.
#pragma once

#include <memory>

#include "comm/early_send.hpp"
#include "comm/peers.hpp"
#include "comm/ring_schedule.hpp"

namespace osdp::runtime {

class Link {
 public:
  virtual ~Link() = default;
  // Blocks until every message of the course has been taken and sent. On a lane, what interrupts its watch
  // interrupts this. Throws ConnectionLost, with the rank in the link's group, when a neighbour has gone or
  // does not answer within the group's timeout.
  virtual void run(const Course& course) = 0;
  virtual const char* name() const = 0;
  virtual int64_t longest_message_bytes() const = 0;
  // How many messages are worth having under way at once.
  virtual int64_t window() const = 0;
  // Up to this size an all-reduce is latency: all ranks send everything to all at once, past this link.
  virtual int64_t latency_bytes() const { return 0; }
  // Whether it sends the next task's head while a course waits for its last messages.
  virtual bool sends_ahead() const { return false; }
};

// By the messages of the group's backend, gloo, between any hosts.
std::unique_ptr<Link> gloo_link(std::shared_ptr<Peers> peers);

// Through memory that ranks of one host share; null on all ranks when they are not all on one host, or one of
// them cannot or must not (OSDP_SHARED_MEMORY=0) share memory. Collective.
std::unique_ptr<Link> shared_memory_link(Peers& peers);

// By TCP connections of its own, between any hosts that reach each other by the addresses that gloo would
// use; null on all ranks where one of them cannot connect, or must not (OSDP_SOCKETS=0, or gloo's own are
// encrypted: GLOO_DEVICE_TRANSPORT=TCP_TLS). Collective.
std::unique_ptr<Link> socket_link(Peers& peers);

}  // namespace osdp::runtime
