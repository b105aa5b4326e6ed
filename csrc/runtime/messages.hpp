// Messages: to and from other ranks of a group, under the lane's watch: tagged with the collective that
// they belong to (Note [A digest in every message]), and waited for in a way that the heartbeat can
// interrupt.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <vector>

#include "runtime/watch.hpp"

namespace osdp::runtime {

class Messages {
 public:
  // For the collective that runs on this thread.
  explicit Messages(c10d::Backend& backend) : backend_(backend), watch_(Watch::here()) {}

  struct Message {
    c10::intrusive_ptr<c10d::Work> work;  // null: nothing to wait for
    int peer = 0;
  };

  Message send(const at::Tensor& tensor, int to) { return post(&c10d::Backend::send, tensor, to); }
  Message receive(const at::Tensor& tensor, int from) { return post(&c10d::Backend::recv, tensor, from); }

  void wait(const Message& message) const {
    if (!message.work) return;
    if (watch_)
      watch_->wait(message.work, message.peer);
    else
      message.work->wait();
  }

 private:
  template <typename Post>
  Message post(Post post, const at::Tensor& tensor, int peer) {
    std::vector<at::Tensor> one{tensor};
    try {
      return {(backend_.*post)(one, peer, watch_ ? watch_->tag() : 0), peer};
    } catch (const std::exception& e) {
      throw ConnectionLost(peer, e.what());
    }
  }

  c10d::Backend& backend_;
  Watch* watch_;
};

}  // namespace osdp::runtime
