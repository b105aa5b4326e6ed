#include "comm/transports/transports.hpp"

#include <map>
#include <mutex>
#include <utility>

namespace osdp::comm {

// Each is in the file of its name. Null on all ranks if one of them cannot or must not use it. Collective.
using Connect = std::unique_ptr<Transport>(const std::shared_ptr<Peers>& peers);
Connect shared_memory_transport, socket_transport, gloo_transport;

namespace {

// The best first; the last one always works.
constexpr Connect* kTable[] = {
    shared_memory_transport,  // between ranks of one host
    socket_transport,         // between hosts that reach each other by the addresses that gloo would use
    gloo_transport,           // between any hosts
};

struct Connected {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Transport>> of;
};

Connected& connected() {
  static auto* all = new Connected();  // never destroyed: lanes end after static objects
  return *all;
}

}  // namespace

std::shared_ptr<Transport> make_transport(const std::shared_ptr<Peers>& peers) {
  for (Connect* connect : kTable)
    if (std::unique_ptr<Transport> transport = connect(peers)) return transport;
  return nullptr;
}

std::shared_ptr<Transport> transport_of(const std::string& group, const std::shared_ptr<Peers>& peers) {
  {
    std::lock_guard lock(connected().mutex);
    if (const auto found = connected().of.find(group); found != connected().of.end()) return found->second;
  }
  auto made = make_transport(peers);  // without the lock: it waits for other ranks
  std::lock_guard lock(connected().mutex);
  return connected().of[group] = std::move(made);
}

bool is_connected(const std::string& group) {
  std::lock_guard lock(connected().mutex);
  return connected().of.contains(group);
}

void forget_transport(const std::string& group) {
  std::shared_ptr<Transport> forgotten;
  std::lock_guard lock(connected().mutex);
  if (const auto found = connected().of.find(group); found != connected().of.end()) {
    forgotten = std::move(found->second);
    connected().of.erase(found);
  }
}

}  // namespace osdp::comm
