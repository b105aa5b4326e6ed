// Link: carries messages round a ring: to the next rank, from the one before.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>

#include "runtime/course.hpp"

namespace osdp::runtime {

class Link {
 public:
  virtual ~Link() = default;
  // Blocks until every message of the course has been taken and sent. On a lane, what interrupts its watch
  // interrupts this. Throws ConnectionLost when a neighbour has gone or does not answer within the group's
  // timeout.
  virtual void run(const Course& course) = 0;
  virtual const char* name() const = 0;
  virtual int64_t longest_message_bytes() const = 0;
  // How many messages are worth having under way at once.
  virtual int64_t window() const = 0;
};

// By gloo's sends and receives, between any hosts.
std::unique_ptr<Link> gloo_link(c10::intrusive_ptr<c10d::Backend> backend);

// Through memory that ranks of one host share; null on all ranks when they are not all on one host, or one of
// them cannot or must not (OSDP_SHARED_MEMORY=0) share memory. Collective.
std::unique_ptr<Link> shared_memory_link(const c10::intrusive_ptr<c10d::Backend>& backend);

}  // namespace osdp::runtime
