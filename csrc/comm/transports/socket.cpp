#ifdef __linux__

#include "comm/transports/socket.hpp"

#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "comm/transports/system_call.hpp"

namespace osdp::comm {
namespace {

bool later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

void wait_for(int descriptor, short events, Socket::Deadline deadline) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) throw std::system_error(ETIMEDOUT, std::generic_category(), "connect");
    pollfd one{descriptor, events, 0};
    const int ready = poll(&one, 1, static_cast<int>(left.count()) + 1);
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) checked(ready, "poll");
  }
}

// The descriptors of our sockets. A forked child closes them at once, or it would keep this rank's
// connections open after this rank has died (Note [A dead rank's children]). In the child the descriptors are
// redirected to /dev/null rather than freed, so that the child's destructors cannot close unrelated files
// that reuse the numbers.
class OpenSockets {
 public:
  static OpenSockets& all() {
    static auto* open = new OpenSockets();  // never destroyed: a process may fork until its end
    return *open;
  }
  void add(int descriptor) {
    std::lock_guard lock(mutex_);
    descriptors_.insert(descriptor);
  }
  void close_one(int descriptor) {
    std::lock_guard lock(mutex_);
    descriptors_.erase(descriptor);
    close(descriptor);
  }

 private:
  OpenSockets() {
    pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); }, [] { all().in_child(); });
  }
  void in_child() {
    const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int descriptor : descriptors_) nowhere < 0 ? close(descriptor) : dup2(nowhere, descriptor);
    if (nowhere >= 0) close(nowhere);
    descriptors_.clear();
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::set<int> descriptors_;
};

int new_socket(int family) {
  const int descriptor =
      checked(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP), "socket");
  const int yes = 1;  // a message must not wait for the previous one's acknowledgement
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return descriptor;
}

SocketAddress copy_of(const sockaddr* address) {
  SocketAddress copy;
  copy.length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&copy.storage, address, copy.length);
  return copy;
}

bool is_internet(const sockaddr* address) {
  return address && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

std::optional<SocketAddress> of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* i = list; i; i = i->ifa_next)
    if (name == i->ifa_name && is_internet(i->ifa_addr)) return copy_of(i->ifa_addr);
  return {};
}

// The first address that the name resolves to and that this host can listen on.
std::optional<SocketAddress> of_name(const char* name) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(name, nullptr, &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  for (const addrinfo* i = list; i; i = i->ai_next) {
    if (!is_internet(i->ai_addr)) continue;
    try {
      const SocketAddress address = copy_of(i->ai_addr);
      Socket::listening(address);
      return address;
    } catch (const std::system_error&) {  // not an address of this host
    }
  }
  return {};
}

}  // namespace

std::optional<SocketAddress> own_address() {
  if (const char* given = std::getenv("GLOO_SOCKET_IFNAME")) {
    const std::string names = given;
    return of_interface(names.substr(0, names.find(',')));
  }
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) == 0)
    if (auto address = of_name(name)) return address;
  return of_name("localhost");
}

Socket Socket::listening(const SocketAddress& address) {
  Socket made(new_socket(address.storage.ss_family));
  checked(bind(made.descriptor_, reinterpret_cast<const sockaddr*>(&address.storage), address.length),
          "bind");
  checked(listen(made.descriptor_, 16), "listen");
  return made;
}

Socket Socket::connected(const SocketAddress& address, Deadline deadline) {
  Socket made(new_socket(address.storage.ss_family));
  const auto* to = reinterpret_cast<const sockaddr*>(&address.storage);
  if (connect(made.descriptor_, to, address.length) != 0) {
    if (errno != EINPROGRESS) checked(-1, "connect");
    wait_for(made.descriptor_, POLLOUT, deadline);
    int error = 0;
    socklen_t size = sizeof error;
    checked(getsockopt(made.descriptor_, SOL_SOCKET, SO_ERROR, &error, &size), "getsockopt");
    if (error != 0) throw std::system_error(error, std::generic_category(), "connect");
  }
  return made;
}

Socket Socket::accepted(Deadline deadline) const {
  while (true) {
    wait_for(descriptor_, POLLIN, deadline);
    const int descriptor = accept4(descriptor_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor >= 0) return Socket(descriptor);
    if (!later(errno) && errno != ECONNABORTED) checked(-1, "accept");
  }
}

Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Socket::Socket(int descriptor) : descriptor_(descriptor) { OpenSockets::all().add(descriptor); }

Socket::~Socket() {
  if (descriptor_ >= 0) OpenSockets::all().close_one(descriptor_);
}

SocketAddress Socket::address() const {
  SocketAddress own;
  own.length = sizeof own.storage;
  checked(getsockname(descriptor_, reinterpret_cast<sockaddr*>(&own.storage), &own.length), "getsockname");
  return own;
}

size_t Socket::write(iovec* pieces, int count) {
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  const ssize_t moved = sendmsg(descriptor_, &message, MSG_NOSIGNAL);
  if (moved < 0 && !later(errno)) checked(-1, "send");
  return moved < 0 ? 0 : static_cast<size_t>(moved);
}

size_t Socket::read(void* into, size_t bytes) {
  const ssize_t moved = recv(descriptor_, into, bytes, 0);
  if (moved == 0 && bytes > 0) throw std::system_error(ECONNRESET, std::generic_category(), "receive");
  if (moved < 0 && !later(errno)) checked(-1, "receive");
  return moved < 0 ? 0 : static_cast<size_t>(moved);
}

void Socket::read_all(void* into, size_t bytes, Deadline deadline) {
  for (size_t done = 0; done < bytes;) {
    wait_for(descriptor_, POLLIN, deadline);
    done += read(static_cast<char*>(into) + done, bytes - done);
  }
}

}  // namespace osdp::comm

#endif
