// Items: what reduced costs leave of a group. Most options of most groups are out (fixing); of the others
// each way for the group's operators to choose is one item.
#pragma once

#include "search/knapsack/context.hpp"
#include "search/knapsack/partial_sums.hpp"

namespace osdp::search {

struct Items {
  size_t group = 0;
  std::vector<Sum> sums;                                     // sorted by memory, none dominated
  std::vector<std::vector<std::pair<int, int32_t>>> counts;  // counts[i]: (option, operators) of sums[i]
  int64_t least_alternative = 0;                             // the smallest reduced cost but one
};

// Groups with one item are closed, their sum is in `base`; open ones, the most decided first (by falling
// least_alternative).
struct OpenGroups {
  Sum base;
  std::vector<Items> closed, open;
};

// All plans whose reduced costs sum to at most `allowance` are among the items. False when the budget is
// spent.
bool open_groups(Context& context, int64_t allowance, OpenGroups& result);

// Writes how many operators take which option into counts[group][option].
void take(const Items& items, size_t item, std::vector<std::vector<int64_t>>& counts);

}  // namespace osdp::search
