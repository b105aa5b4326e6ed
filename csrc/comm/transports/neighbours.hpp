// Neighbours: the two ranks that a transport of our own is connected to, and the checks on what comes from
// them: messages of another collective or of the wrong length, and silence.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "comm/peers.hpp"
#include "faults/collective_tracker.hpp"

namespace osdp::comm {

class Neighbours {
 public:
  using Clock = std::chrono::steady_clock;
  // How often a sleeping thread checks whether it has been interrupted.
  static constexpr std::chrono::milliseconds kGlance{100};

  explicit Neighbours(const Peers& peers)
      : rank_(peers.rank()), world_(peers.world()), timeout_(peers.timeout()) {}

  int next() const { return (rank_ + 1) % world_; }
  int before() const { return (rank_ + world_ - 1) % world_; }
  int world() const { return world_; }

  // Called when a schedule begins, on a lane's thread or on one without a lane.
  void begin() {
    tracker_ = faults::CollectiveTracker::here();
    digest_ = tracker_ ? tracker_->digest() : 0;
  }
  // The digest of the running collective: Note [A digest in every message].
  uint64_t digest() const { return digest_; }
  const faults::CollectiveTracker* tracker() const { return tracker_; }  // null: no lane

  void moved() {  // messages have arrived
    if (tracker_) tracker_->moved();
  }
  // Throws if a message of `bytes` bytes should have `expected` bytes.
  void check_length(int64_t bytes, int64_t expected) const {
    if (bytes == expected) return;
    throw std::runtime_error("rank " + std::to_string(before()) + " sent " + std::to_string(bytes) +
                             " bytes where rank " + std::to_string(rank_) + " expects " +
                             std::to_string(expected) + ": the ranks run different collectives");
  }
  // Called every kGlance while nothing moves: throws the exception that interrupted the lane, if any.
  void check_lane() const {
    if (tracker_) tracker_->check();
  }
  // Throws ConnectionLost if the group's timeout has passed since `since`, when a message last moved.
  void check_silence(Clock::time_point since) const {
    if (Clock::now() - since > timeout_)
      throw faults::ConnectionLost(
          -1, "this rank's neighbours were silent for " + std::to_string(timeout_.count() / 1000) + " s");
  }

 private:
  int rank_, world_;
  std::chrono::milliseconds timeout_;
  // Of the running schedule:
  faults::CollectiveTracker* tracker_ = nullptr;
  uint64_t digest_ = 0;
};

// False if the environment says VARIABLE=0.
inline bool wanted(const char* variable) {
  const char* given = std::getenv(variable);
  return !given || std::string_view(given) != "0";
}

}  // namespace osdp::comm
