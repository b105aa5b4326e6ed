#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "comm/rendezvous.hpp"
#include "comm/transports/shared_memory.hpp"
#include "comm/transports/transport.hpp"
#include "faults/collective_tracker.hpp"

namespace osdp::runtime {

#ifdef __linux__

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kGlance(100);  // how often a sleeper looks whether its neighbours live

class SharedMemoryTransport final : public Transport {
 public:
  SharedMemoryTransport(std::unique_ptr<SharedQueue> in, std::unique_ptr<SharedQueue> out,
                        std::unique_ptr<SharedQueue> before, int rank, int world,
                        std::chrono::milliseconds timeout)
      : in_(std::move(in)),
        out_(std::move(out)),
        before_(std::move(before)),
        rank_(rank),
        world_(world),
        timeout_(timeout) {}

  const char* name() const override { return "shared memory"; }
  int64_t longest_message_bytes() const override { return Queue::kSlotBytes; }
  int64_t window() const override { return Queue::kSlots; }

  void run(const RingSchedule& schedule) override {
    const int64_t total = schedule.messages();
    tracker_ = CollectiveTracker::here();
    digest_ = tracker_ ? tracker_->digest() : 0;
    int64_t sent = 0, taken = 0;
    while (sent < total || taken < total) {
      const uint32_t heard = (*in_)->bell.load();
      bool moved = false;
      while (sent < total && sent < taken + schedule.segments && send(schedule.sent(sent)))
        ++sent, moved = true;
      if (taken < total && take(schedule, taken)) ++taken, moved = true;
      if (!moved)
        wait(heard);
      else if (tracker_)
        tracker_->moved();
    }
  }

 private:
  bool send(const Range& range) {
    if (range.empty()) return true;
    if ((*out_)->full()) return false;
    (*out_)->push(range.data, range.bytes(), digest_);
    out_->ring();
    return true;
  }

  bool take(const RingSchedule& schedule, int64_t i) {
    const Range expected = schedule.expected(i);
    if (expected.empty()) return true;
    if ((*in_)->empty()) return false;
    const Queue::Message message = (*in_)->front();
    if (message.digest != digest_) return false;  // of another collective: the heartbeat tells who differs
    if (message.bytes != expected.bytes())
      throw std::runtime_error("rank " + std::to_string(before()) + " sent " + std::to_string(message.bytes) +
                               " bytes where rank " + std::to_string(rank_) + " expects " +
                               std::to_string(expected.bytes()) + ": the ranks run different collectives");
    schedule.take(i / schedule.segments, i % schedule.segments, message.data);
    (*in_)->pop();
    before_->ring();
    return true;
  }

  // Until the bell rings. A neighbour that ended, or has not moved for the group's timeout, is an error.
  void wait(uint32_t heard) {
    const auto begin = Clock::now();
    while ((*in_)->bell.load() == heard) {
      in_->sleep(heard, kGlance);
      if ((*in_)->bell.load() != heard) return;
      if (tracker_) tracker_->check();
      for (const auto& [queue, rank] : {std::pair(before_.get(), before()), std::pair(out_.get(), next())})
        if (!queue->owner_lives()) throw ConnectionLost(rank, "its shared memory is free");
      if (Clock::now() - begin > timeout_)
        throw ConnectionLost(
            -1, "this rank's neighbours were silent for " + std::to_string(timeout_.count() / 1000) + " s");
    }
  }

  int before() const { return (rank_ + world_ - 1) % world_; }
  int next() const { return (rank_ + 1) % world_; }

  std::unique_ptr<SharedQueue> in_;      // from the rank before; our own bell
  std::unique_ptr<SharedQueue> out_;     // the next rank's
  std::unique_ptr<SharedQueue> before_;  // the one that the rank before reads: for its bell
  int rank_, world_;
  std::chrono::milliseconds timeout_;
  CollectiveTracker* tracker_ = nullptr;  // of the lane that runs the schedule; null: none
  uint64_t digest_ = 0;
};

// What ranks tell each other: where they are, and where their queue is.
struct QueueEndpoint {
  char host[256] = {};
  SharedQueue::Address queue;
};

bool shared_memory_wanted() {
  const char* given = std::getenv("OSDP_SHARED_MEMORY");
  return !given || std::string(given) != "0";
}

}  // namespace

std::unique_ptr<Transport> shared_memory_transport(Peers& peers) {
  const int rank = peers.rank(), world = peers.world();
  std::unique_ptr<SharedQueue> in, out, before;
  QueueEndpoint mine;
  try {
    if (shared_memory_wanted()) {
      in = std::make_unique<SharedQueue>();
      const std::string host = host_identity();
      std::copy_n(host.data(), std::min(host.size(), sizeof mine.host - 1), mine.host);
      mine.queue = in->address();
    }
  } catch (const std::exception&) {  // this machine cannot; sockets can
  }
  const std::vector<QueueEndpoint> endpoints = rendezvous(peers, mine);
  const auto with_us = [&](const QueueEndpoint& endpoint) {
    return endpoint.host[0] != 0 && std::strncmp(endpoint.host, mine.host, sizeof mine.host) == 0;
  };
  if (!std::all_of(endpoints.begin(), endpoints.end(), with_us)) return nullptr;  // the same on all ranks
  try {
    out = std::make_unique<SharedQueue>(endpoints[(rank + 1) % world].queue);
    before = std::make_unique<SharedQueue>(endpoints[(rank + world - 1) % world].queue);
  } catch (const std::exception&) {
  }
  if (!everywhere(peers, out && before)) return nullptr;
  return std::make_unique<SharedMemoryTransport>(std::move(in), std::move(out), std::move(before), rank,
                                                 world, peers.timeout());
}

#else

std::unique_ptr<Transport> shared_memory_transport(Peers&) { return nullptr; }

#endif

}  // namespace osdp::runtime
