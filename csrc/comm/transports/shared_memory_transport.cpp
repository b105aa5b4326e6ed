#include <algorithm>
#include <cstring>

#include "comm/rendezvous.hpp"
#include "comm/transports/neighbours.hpp"
#include "comm/transports/shared_memory.hpp"
#include "comm/transports/transport.hpp"

namespace osdp::comm {

#ifdef __linux__

namespace {

class SharedMemoryTransport final : public Transport {
 public:
  SharedMemoryTransport(std::unique_ptr<SharedQueue> in, std::unique_ptr<SharedQueue> out,
                        std::unique_ptr<SharedQueue> before, const Neighbours& neighbours)
      : in_(std::move(in)), out_(std::move(out)), before_(std::move(before)), neighbours_(neighbours) {}

  const char* name() const override { return "shared memory"; }
  int64_t longest_message_bytes() const override { return Queue::kSlotBytes; }
  int64_t window() const override { return Queue::kSlots; }

  void run(const RingSchedule& schedule) override {
    const int64_t total = schedule.messages();
    neighbours_.begin();
    int64_t sent = 0, taken = 0;
    while (sent < total || taken < total) {
      const uint32_t heard = (*in_)->bell.load();
      bool moved = false;
      while (sent < total && sent < taken + schedule.segments && send(schedule.sent(sent)))
        ++sent, moved = true;
      if (taken < total && take(schedule, taken)) ++taken, moved = true;
      if (!moved)
        wait(heard);
      else
        neighbours_.moved();
    }
  }

 private:
  bool send(const Range& range) {
    if (range.empty()) return true;
    if ((*out_)->full()) return false;
    (*out_)->push(range.data, range.bytes(), neighbours_.digest());
    out_->ring();
    return true;
  }

  bool take(const RingSchedule& schedule, int64_t i) {
    const Range expected = schedule.expected(i);
    if (expected.empty()) return true;
    if ((*in_)->empty()) return false;
    const Queue::Message message = (*in_)->front();
    // A message of another collective is left alone: the heartbeat finds out which rank differs.
    if (message.digest != neighbours_.digest()) return false;
    neighbours_.check_length(message.bytes, expected.bytes());
    schedule.take(i / schedule.segments, i % schedule.segments, message.data);
    (*in_)->pop();
    before_->ring();
    return true;
  }

  // Sleeps until the bell rings. Throws if a neighbour has ended or nothing has moved for the group's
  // timeout.
  void wait(uint32_t heard) {
    const auto begin = Neighbours::Clock::now();
    while ((*in_)->bell.load() == heard) {
      in_->sleep(heard, Neighbours::kGlance);
      if ((*in_)->bell.load() != heard) return;
      neighbours_.check_lane();
      for (const auto& [queue, rank] :
           {std::pair(before_.get(), neighbours_.before()), std::pair(out_.get(), neighbours_.next())})
        if (!queue->owner_lives()) throw faults::ConnectionLost(rank, "its shared memory was released");
      neighbours_.check_silence(begin);
    }
  }

  std::unique_ptr<SharedQueue> in_;      // from the rank before; has our bell
  std::unique_ptr<SharedQueue> out_;     // the next rank's
  std::unique_ptr<SharedQueue> before_;  // the queue of the rank before: for its bell
  Neighbours neighbours_;
};

// What ranks exchange: their host and their queue.
struct QueueEndpoint {
  char host[256] = {};
  SharedQueue::Address queue;
};

}  // namespace

// Through memory shared by the ranks of one host. Null on all ranks if they are not all on one host, or if
// one of them cannot share memory or must not (OSDP_SHARED_MEMORY=0).
std::unique_ptr<Transport> shared_memory_transport(const std::shared_ptr<Peers>& peers) {
  const Neighbours neighbours(*peers);
  std::unique_ptr<SharedQueue> in, out, before;
  QueueEndpoint mine;
  try {
    if (wanted("OSDP_SHARED_MEMORY")) {
      in = std::make_unique<SharedQueue>();
      const std::string host = host_identity();
      std::copy_n(host.data(), std::min(host.size(), sizeof mine.host - 1), mine.host);
      mine.queue = in->address();
    }
  } catch (const std::exception&) {  // not possible on this machine; sockets follow
  }
  const std::vector<QueueEndpoint> endpoints = rendezvous(*peers, mine);
  const auto with_us = [&](const QueueEndpoint& endpoint) {
    return endpoint.host[0] != 0 && std::strncmp(endpoint.host, mine.host, sizeof mine.host) == 0;
  };
  if (!std::all_of(endpoints.begin(), endpoints.end(), with_us)) return nullptr;  // the same on all ranks
  try {
    out = std::make_unique<SharedQueue>(endpoints[neighbours.next()].queue);
    before = std::make_unique<SharedQueue>(endpoints[neighbours.before()].queue);
  } catch (const std::exception&) {
  }
  if (!everywhere(*peers, out && before)) return nullptr;
  return std::make_unique<SharedMemoryTransport>(std::move(in), std::move(out), std::move(before),
                                                 neighbours);
}

#else

std::unique_ptr<Transport> shared_memory_transport(const std::shared_ptr<Peers>&) { return nullptr; }

#endif

}  // namespace osdp::comm
