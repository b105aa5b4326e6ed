// A transport over TCP connections of our own.
//
// Note [Streams instead of requests]
// gloo sends a message only after its receiver has requested it: each message costs a round trip and two
// thread switches, and the link is idle between collectives. Here each rank has one byte stream to the next
// rank and one from the previous rank. Messages follow each other, each with a header; the receiver's kernel
// buffers those that arrive early. One thread, the lane's, serves both streams and sleeps when neither can
// move.
#ifdef __linux__

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>
#include <string>
#include <system_error>

#include "comm/early_send.hpp"
#include "comm/rendezvous.hpp"
#include "comm/transports/neighbours.hpp"
#include "comm/transports/socket.hpp"
#include "comm/transports/transport.hpp"

namespace osdp::comm {
namespace {

using Clock = Neighbours::Clock;
constexpr std::chrono::seconds kConnect(10);

struct Header {
  int64_t bytes = 0;
  uint64_t digest = 0;  // of its collective: Note [A digest in every message]
};

// Messages to the next rank, one at a time.
class Sender {
 public:
  explicit Sender(Socket socket) : socket_(std::move(socket)) {}

  bool idle() const { return left_ == 0; }
  int descriptor() const { return socket_.descriptor(); }

  void begin(uint64_t digest, const Range& range) {
    header_ = {.bytes = range.bytes(), .digest = digest};
    data_ = range.data;
    left_ = sizeof header_ + range.bytes();
  }

  // Whether the whole message has been handed to the system.
  bool push() {
    while (left_ > 0) {
      const size_t payload = header_.bytes;
      const size_t header_left = left_ > payload ? left_ - payload : 0;
      const size_t data_left = std::min(left_, payload);
      std::array<iovec, 2> pieces{
          iovec{reinterpret_cast<char*>(&header_) + sizeof header_ - header_left, header_left},
          iovec{data_ + payload - data_left, data_left}};
      const size_t moved = socket_.write(pieces.data(), 2);
      if (moved == 0) return false;
      left_ -= moved;
    }
    return true;
  }

 private:
  Socket socket_;
  Header header_;
  char* data_ = nullptr;
  size_t left_ = 0;  // of header and data
};

// Messages from the rank before, one at a time.
class Receiver {
 public:
  explicit Receiver(Socket socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.descriptor(); }

  // The next message's header; null until all of it has arrived.
  const Header* header() {
    while (have_ < sizeof header_) {
      const size_t moved = socket_.read(reinterpret_cast<char*>(&header_) + have_, sizeof header_ - have_);
      if (moved == 0) return nullptr;
      have_ += moved;
    }
    return &header_;
  }

  // Whether all of the message is in `into`, which must be the same in every call for one message. Then the
  // next message can be read.
  bool read(void* into) {
    const size_t total = sizeof header_ + header_.bytes;
    while (have_ < total) {
      const size_t moved = socket_.read(static_cast<char*>(into) + (have_ - sizeof header_), total - have_);
      if (moved == 0) return false;
      have_ += moved;
    }
    have_ = 0;
    return true;
  }

 private:
  Socket socket_;
  Header header_;
  size_t have_ = 0;  // of header and data
};

class SocketTransport final : public Transport {
 public:
  SocketTransport(Socket out, Socket in, const Neighbours& neighbours)
      : out_(std::move(out)), in_(std::move(in)), neighbours_(neighbours) {}

  const char* name() const override { return "sockets"; }
  int64_t longest_message_bytes() const override { return 128 * 1024; }
  int64_t window() const override { return 1; }
  int64_t latency_bytes() const override { return neighbours_.world() > 2 ? 16 * 1024 : 0; }
  bool sends_early() const override { return true; }

  void run(const RingSchedule& schedule) override {
    neighbours_.begin();
    skip_ = 0;
    if (ahead_ > 0) {
      if (ahead_digest_ != neighbours_.digest())
        throw std::logic_error("messages of another collective were sent ahead");
      skip_ = ahead_;
      ahead_ = 0;
    }
    const int64_t total = schedule.messages();
    int64_t sent = 0, taken = 0;
    bool ours = !out_.idle();  // whether the message being sent is this schedule's
    last_move_ = Clock::now();
    while (true) {
      const bool pushed = send(schedule, sent, taken, ours);
      const bool took = taken < total && take(schedule, taken);
      if (sent == total && taken == total && !(ours && !out_.idle())) return;
      if (pushed || took)
        last_move_ = Clock::now();
      else
        wait(taken < total);
      if (took) neighbours_.moved();
    }
  }

 private:
  // Sends what can be sent now. Returns whether anything was.
  bool send(const RingSchedule& schedule, int64_t& sent, int64_t taken, bool& ours) {
    const int64_t total = schedule.messages();
    bool moved = false;
    try {
      while (true) {
        if (!out_.idle() && !out_.push()) return moved;
        if (sent < total) {
          if (sent >= taken + schedule.segments) return moved;
          const Range range = schedule.sent(sent++);
          if (range.empty()) continue;
          if (skip_ > 0) {
            --skip_;
            continue;
          }
          out_.begin(neighbours_.digest(), range);
          ours = true;
        } else {
          const faults::CollectiveTracker* tracker = neighbours_.tracker();
          const Upcoming* next = tracker ? tracker->upcoming() : nullptr;
          if (!next || next->early.transport != this) return moved;
          if (ahead_ == static_cast<int64_t>(next->early.messages.size())) return moved;
          out_.begin(ahead_digest_ = tracker->next_digest(*next->name), next->early.messages[ahead_++]);
          ours = false;
        }
        moved = true;
      }
    } catch (const std::system_error& e) {
      throw faults::ConnectionLost(neighbours_.next(), e.what());
    }
  }

  // Takes message `taken` if it has arrived, or reads the part that has. Returns whether it was taken.
  bool take(const RingSchedule& schedule, int64_t& taken) {
    const Range expected = schedule.expected(taken);
    const int64_t step = taken / schedule.segments, segment = taken % schedule.segments;
    try {
      if (!expected.empty()) {
        const Header* header = in_.header();
        stranger_ = header && header->digest != neighbours_.digest();
        if (!header || stranger_) return false;  // another collective's: left to the heartbeat
        neighbours_.check_length(header->bytes, expected.bytes());
        const Range into = schedule.inbox(step, segment);
        if (!in_.read(into.data)) return false;
        schedule.take(step, segment, into.data);
      }
    } catch (const std::system_error& e) {
      throw faults::ConnectionLost(neighbours_.before(), e.what());
    }
    ++taken;
    return true;
  }

  // Sleeps until a stream can move. Throws if nothing has moved for the group's timeout.
  void wait(bool receiving) {
    std::array<pollfd, 2> streams{pollfd{receiving && !stranger_ ? in_.descriptor() : -1, POLLIN, 0},
                                  pollfd{out_.idle() ? -1 : out_.descriptor(), POLLOUT, 0}};
    if (poll(streams.data(), streams.size(), Neighbours::kGlance.count()) > 0) return;
    neighbours_.check_lane();
    neighbours_.check_silence(last_move_);
  }

  Sender out_;
  Receiver in_;
  Neighbours neighbours_;

  // For the next collective (Note [Sent ahead]): messages that have been sent or begun, and their digest.
  int64_t ahead_ = 0;
  uint64_t ahead_digest_ = 0;

  // Of the running schedule:
  int64_t skip_ = 0;       // messages that were sent ahead
  bool stranger_ = false;  // a message of another collective has arrived
  Clock::time_point last_move_;
};

// Where the previous rank connects to this one, and the secret that it must send.
struct SocketEndpoint {
  SocketAddress address;
  uint64_t secret = 0;  // 0: this rank cannot or must not use sockets
};

bool sockets_wanted() {
  const char* device = std::getenv("GLOO_DEVICE_TRANSPORT");  // TCP_TLS: encryption is required
  return wanted("OSDP_SOCKETS") && (!device || std::string(device) == "TCP");
}

uint64_t new_secret() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

// Accepts the previous rank only: other connections to the port do not know the secret.
Socket accepted(const Socket& listening, uint64_t secret, Socket::Deadline deadline) {
  while (true) {
    Socket socket = listening.accepted(deadline);
    try {
      uint64_t said = 0;
      socket.read_all(&said, sizeof said, std::min(deadline, Clock::now() + std::chrono::seconds(1)));
      if (said == secret) return socket;
    } catch (const std::system_error&) {
    }
  }
}

}  // namespace

// Through TCP connections of its own, between hosts that can reach each other by the addresses that gloo
// would use. Null on all ranks if one of them cannot connect or must not (OSDP_SOCKETS=0, or gloo's
// connections are encrypted: GLOO_DEVICE_TRANSPORT=TCP_TLS).
std::unique_ptr<Transport> socket_transport(const std::shared_ptr<Peers>& peers) {
  const Neighbours neighbours(*peers);
  SocketEndpoint mine;
  Socket listening;
  try {
    if (const auto address = sockets_wanted() ? own_address() : std::nullopt) {
      listening = Socket::listening(*address);
      mine = {listening.address(), new_secret()};
    }
  } catch (const std::system_error&) {  // gloo may still work
  }
  const std::vector<SocketEndpoint> endpoints = rendezvous(*peers, mine);
  if (std::any_of(endpoints.begin(), endpoints.end(),
                  [](const SocketEndpoint& endpoint) { return endpoint.secret == 0; }))
    return nullptr;
  std::optional<Socket> out, in;
  try {
    const auto deadline = Clock::now() + std::min<std::chrono::milliseconds>(kConnect, peers->timeout() / 2);
    const SocketEndpoint& next = endpoints[neighbours.next()];
    out = Socket::connected(next.address, deadline);
    uint64_t secret = next.secret;
    iovec whole{&secret, sizeof secret};
    if (out->write(&whole, 1) == sizeof secret) in = accepted(listening, mine.secret, deadline);
  } catch (const std::system_error&) {
  }
  if (!everywhere(*peers, out && in)) return nullptr;
  return std::make_unique<SocketTransport>(std::move(*out), std::move(*in), neighbours);
}

}  // namespace osdp::comm

#else

#include "comm/transports/transport.hpp"

namespace osdp::comm {
std::unique_ptr<Transport> socket_transport(const std::shared_ptr<Peers>&) { return nullptr; }
}  // namespace osdp::comm

#endif
