// Messages: sends to and receives from other ranks of a group, under the lane's tracker. Messages are tagged
// with the digest of their collective (Note [A digest in every message]), and the heartbeat can interrupt the
// waits.
#pragma once

#include <memory>

#include "comm/peers.hpp"
#include "faults/collective_tracker.hpp"

namespace osdp::comm {

class Messages {
 public:
  // For the collective that is running on this thread.
  explicit Messages(Peers& peers) : peers_(peers), tracker_(faults::CollectiveTracker::here()) {}

  struct Message {
    std::shared_ptr<Peers::Message> message;  // null: nothing to wait for
    int peer = 0;
  };

  Message send(const Range& range, int to) { return post(&Peers::send, range, to); }
  Message receive(const Range& range, int from) { return post(&Peers::receive, range, from); }

  void wait(const Message& one) const {
    if (!one.message) return;
    if (tracker_) return tracker_->wait(one.message, one.peer);
    try {
      one.message->wait();
    } catch (const std::exception& e) {
      throw faults::ConnectionLost(one.peer, e.what());
    }
  }

 private:
  template <typename Post>
  Message post(Post post, const Range& range, int peer) {
    try {
      return {(peers_.*post)(range, peer, tag()), peer};
    } catch (const std::exception& e) {
      throw faults::ConnectionLost(peer, e.what());
    }
  }

  // gloo matches messages by tag; a tag has 31 bits.
  int tag() const {
    const uint64_t digest = tracker_ ? tracker_->digest() : 0;
    return static_cast<int>((digest ^ digest >> 32) & 0x7fffffff);
  }

  Peers& peers_;
  faults::CollectiveTracker* tracker_;
};

}  // namespace osdp::comm
