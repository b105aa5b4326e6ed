// Sockets: non-blocking TCP connections of our own between ranks. Linux only.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <optional>

namespace osdp::comm {

// An address and port. Trivially copyable, sent between ranks.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
};

// The address by which other ranks reach this one, chosen as gloo does: that of the interface
// GLOO_SOCKET_IFNAME (the first, if it names several), else what the host name resolves to, else the loopback
// address. Port 0.
std::optional<SocketAddress> own_address();

class Socket {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  Socket() = default;
  // All three throw std::system_error; the last two also if the deadline passes.
  static Socket listening(const SocketAddress& address);
  static Socket connected(const SocketAddress& address, Deadline deadline);
  Socket accepted(Deadline deadline) const;

  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  SocketAddress address() const;  // local, with the port that the system assigned
  int descriptor() const { return descriptor_; }

  // Move as many bytes as possible without blocking; return their number, which may be 0. Throw
  // std::system_error if the connection is broken; `read` also if the other end has closed it.
  size_t write(iovec* pieces, int count);
  size_t read(void* into, size_t bytes);
  // Blocks until `bytes` bytes have been read. Throws std::system_error at the deadline.
  void read_all(void* into, size_t bytes, Deadline deadline);

 private:
  explicit Socket(int descriptor);
  int descriptor_ = -1;
};

}  // namespace osdp::comm
