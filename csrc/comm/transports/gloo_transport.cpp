#include <deque>

#include "comm/messages.hpp"
#include "comm/transports/transport.hpp"

namespace osdp::comm {
namespace {

class GlooTransport final : public Transport {
 public:
  explicit GlooTransport(std::shared_ptr<Peers> peers) : peers_(std::move(peers)) {}

  const char* name() const override { return "gloo"; }
  int64_t longest_message_bytes() const override { return 256 * 1024; }
  int64_t window() const override { return 8; }
  int64_t latency_bytes() const override { return 16 * 1024; }

  void run(const RingSchedule& schedule) override {
    const int world = peers_->world(), rank = peers_->rank();
    const int next = (rank + 1) % world, before = (rank + world - 1) % world;
    const int64_t total = schedule.messages();
    struct Arriving {
      Range into;
      Messages::Message message;
    };
    Messages messages(*peers_);
    std::deque<Arriving> arriving;
    std::vector<Messages::Message> sends;
    int64_t asked = 0, sent = 0;
    for (int64_t done = 0; done < total; ++done) {
      for (; asked < total && asked < done + schedule.window; ++asked) {
        Arriving& one = arriving.emplace_back();
        if (schedule.expected(asked).empty()) continue;
        one.into = schedule.inbox(asked / schedule.segments, asked % schedule.segments);
        one.message = messages.receive(one.into, before);
      }
      for (; sent < total && sent < done + schedule.segments; ++sent) {
        const Range range = schedule.sent(sent);
        if (!range.empty()) sends.push_back(messages.send(range, next));
      }
      const Arriving first = std::move(arriving.front());
      arriving.pop_front();
      if (!first.message.message) continue;
      messages.wait(first.message);
      schedule.take(done / schedule.segments, done % schedule.segments, first.into.data);
    }
    for (const Messages::Message& send : sends) messages.wait(send);
  }

 private:
  std::shared_ptr<Peers> peers_;
};

}  // namespace

// Through messages of the group's backend, gloo, between any hosts.
std::unique_ptr<Transport> gloo_transport(const std::shared_ptr<Peers>& peers) {
  return std::make_unique<GlooTransport>(peers);
}

}  // namespace osdp::comm
