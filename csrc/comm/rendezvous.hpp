// Rendezvous: the exchange of connection data between the ranks of a group, before they have a transport.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "comm/messages.hpp"

namespace osdp::comm {

// Returns every rank's endpoint (a trivially copyable type), in rank order. Collective; on a lane, an
// interruption of its tracker interrupts this. Throws ConnectionLost.
template <class Endpoint>
std::vector<Endpoint> rendezvous(Peers& peers, Endpoint mine) {
  static_assert(std::is_trivially_copyable_v<Endpoint>);
  const auto bytes_of = [](Endpoint& endpoint) {
    return Range{reinterpret_cast<char*>(&endpoint), sizeof endpoint, {}};
  };
  std::vector<Endpoint> endpoints(peers.world());
  Messages messages(peers);
  std::vector<Messages::Message> under_way;
  for (int r = 0; r < peers.world(); ++r) {
    if (r == peers.rank()) {
      endpoints[r] = mine;
      continue;
    }
    under_way.push_back(messages.receive(bytes_of(endpoints[r]), r));
    under_way.push_back(messages.send(bytes_of(mine), r));
  }
  for (const Messages::Message& message : under_way) messages.wait(message);
  return endpoints;
}

// Whether `here` is true on all ranks. Collective.
inline bool everywhere(Peers& peers, bool here) {
  const std::vector<char> answers = rendezvous(peers, static_cast<char>(here));
  return std::all_of(answers.begin(), answers.end(), [](char answer) { return answer != 0; });
}

}  // namespace osdp::comm
