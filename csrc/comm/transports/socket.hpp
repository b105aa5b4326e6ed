// Sockets: TCP connections of our own between ranks, which never block. Linux.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <optional>

namespace osdp::runtime {

// An address and port. Plain bytes, sent between ranks.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
};

// By which the other ranks reach this one, as gloo chooses it: that of the interface GLOO_SOCKET_IFNAME (the
// first, if it names several), else what the host's name resolves to, else the loopback's. Port 0.
std::optional<SocketAddress> own_address();

class Socket {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  Socket() = default;
  // All three throw std::system_error; the last two after the deadline too.
  static Socket listening(const SocketAddress& address);
  static Socket connected(const SocketAddress& address, Deadline deadline);
  Socket accepted(Deadline deadline) const;

  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  SocketAddress address() const;  // its own, with the port it was given
  int descriptor() const { return descriptor_; }

  // As many bytes as can be moved at once, 0 if none. Throw std::system_error when the connection is broken,
  // `read` also when the other end has closed it.
  size_t write(iovec* pieces, int count);
  size_t read(void* into, size_t bytes);
  // Until `bytes` bytes are there, or the deadline.
  void read_all(void* into, size_t bytes, Deadline deadline);

 private:
  explicit Socket(int descriptor);
  int descriptor_ = -1;
};

}  // namespace osdp::runtime
