// Items: the assignments of a group that remain after reduced-cost fixing. Fixing removes most options of
// most groups; each way to assign the remaining options to the group's operators is one item.
#pragma once

#include "search/knapsack/context.hpp"
#include "search/knapsack/partial_sums.hpp"

namespace osdp::search {

struct Items {
  size_t group = 0;
  std::vector<Sum> sums;                                     // sorted by memory, none dominated
  std::vector<std::vector<std::pair<int, int32_t>>> counts;  // counts[i]: (option, operators) of sums[i]
  int64_t least_alternative = 0;                             // the second smallest reduced cost
};

// Groups with a single item are closed, and `base` is their sum; open groups are sorted by descending
// least_alternative, so those whose alternatives cost most come first.
struct OpenGroups {
  Sum base;
  std::vector<Items> closed, open;
};

// The items represent all plans whose reduced costs sum to at most `allowance`, up to dominance. Returns
// false when the budget is spent.
bool open_groups(Context& context, int64_t allowance, OpenGroups& result);

// Adds the item's numbers of operators per option to counts[group][option].
void take(const Items& items, size_t item, std::vector<std::vector<int64_t>>& counts);

}  // namespace osdp::search
