// Cards: what the ranks of a group tell each other, once, before they have a link of their own.
#pragma once

#include <ATen/Functions.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstring>
#include <type_traits>
#include <vector>

namespace osdp::runtime {

// Every rank's card, in rank order. Plain bytes. Collective.
template <class Card>
std::vector<Card> all_cards(c10d::Backend& backend, const Card& mine) {
  static_assert(std::is_trivially_copyable_v<Card>);
  const int64_t size = sizeof(Card);
  std::vector<at::Tensor> input{at::empty({size}, at::kByte)};
  std::memcpy(input[0].mutable_data_ptr(), &mine, sizeof mine);
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int r = 0; r < backend.getSize(); ++r) outputs[0].push_back(at::empty({size}, at::kByte));
  backend.allgather(outputs, input)->wait();
  std::vector<Card> cards(outputs[0].size());
  for (size_t r = 0; r < cards.size(); ++r)
    std::memcpy(&cards[r], outputs[0][r].const_data_ptr(), sizeof(Card));
  return cards;
}

// Whether it is so on all ranks. Collective.
inline bool everywhere(c10d::Backend& backend, bool here) {
  std::vector<at::Tensor> flag{at::full({1}, here, at::kInt)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MIN;
  backend.allreduce(flag, options)->wait();
  return flag[0].item<int>() != 0;
}

}  // namespace osdp::runtime
