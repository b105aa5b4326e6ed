// Cards: what the ranks of a group tell each other, once, before they have a link of their own.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "comm/messages.hpp"

namespace osdp::runtime {

// Every rank's card, in rank order. Plain bytes. Collective; on a lane, what interrupts its watch interrupts
// this. Throws ConnectionLost.
template <class Card>
std::vector<Card> all_cards(Peers& peers, Card mine) {
  static_assert(std::is_trivially_copyable_v<Card>);
  const auto bytes_of = [](Card& card) { return Range{reinterpret_cast<char*>(&card), sizeof card, {}}; };
  std::vector<Card> cards(peers.world());
  Messages messages(peers);
  std::vector<Messages::Message> under_way;
  for (int r = 0; r < peers.world(); ++r) {
    if (r == peers.rank()) {
      cards[r] = mine;
      continue;
    }
    under_way.push_back(messages.receive(bytes_of(cards[r]), r));
    under_way.push_back(messages.send(bytes_of(mine), r));
  }
  for (const Messages::Message& message : under_way) messages.wait(message);
  return cards;
}

// Whether it is so on all ranks. Collective.
inline bool everywhere(Peers& peers, bool here) {
  const std::vector<char> answers = all_cards(peers, static_cast<char>(here));
  return std::all_of(answers.begin(), answers.end(), [](char answer) { return answer != 0; });
}

}  // namespace osdp::runtime
