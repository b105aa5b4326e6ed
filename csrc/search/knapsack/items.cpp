#include "search/knapsack/items.hpp"

#include <map>

namespace osdp::search {
namespace {

// False when the budget is spent.
bool make_items(Context& context, size_t g, int64_t allowance, Items& items) {
  const auto& reduced = context.reduced.of[g];
  const int cheapest = context.reduced.cheapest[g];
  const auto& options = context.groups[g].options;
  const auto& base = options[cheapest];
  const int64_t n = context.groups[g].count;
  items.group = g;
  std::vector<int> open;
  items.least_alternative = kLargestSum;
  for (int k = 0; k < static_cast<int>(options.size()); ++k) {
    if (k == cheapest || reduced[k] > allowance) continue;
    open.push_back(k);
    items.least_alternative = std::min(items.least_alternative, reduced[k]);
  }
  // Enumerates counts of the open options; the remaining operators take the cheapest one. Dominance compares
  // assignments of equally many operators: while partial ones are built, unassigned operators count as taking
  // the cheapest option.
  struct Partial {
    Sum sum;
    int64_t used;
    std::vector<std::pair<int, int32_t>> counts;
  };
  constexpr size_t kPartialBytes = 2 * sizeof(Partial) + 4 * sizeof(int64_t);  // including its counts
  std::vector<Partial> partials(1), kept;
  partials[0].sum = {n * base.memory_bytes, n * base.time_ps, 0, 0, 0};
  for (int k : open) {
    const int64_t dm = options[k].memory_bytes - base.memory_bytes, dt = options[k].time_ps - base.time_ps;
    const size_t before = partials.size();
    for (size_t i = 0; i < before; ++i) {
      Sum sum = partials[i].sum;
      int64_t used = partials[i].used;
      for (int32_t c = 1;; ++c) {
        sum.memory += dm, sum.time += dt, sum.reduced += reduced[k];
        if (++used > n || sum.reduced > allowance) break;
        Partial next{sum, used, partials[i].counts};
        next.counts.emplace_back(k, c);
        partials.push_back(std::move(next));
        if (context.watch.spent(100)) return false;
      }
      if (context.watch.too_large(partials.size() * kPartialBytes)) return false;
    }
    if (k == open.front()) continue;
    // A partial assignment is dominated by one with no more memory, no more time and no more operators
    // assigned.
    std::sort(partials.begin(), partials.end(), [](const Partial& a, const Partial& b) {
      if (by_memory(a.sum, b.sum) || by_memory(b.sum, a.sum)) return by_memory(a.sum, b.sum);
      return a.used != b.used ? a.used < b.used : a.counts < b.counts;
    });
    std::map<int64_t, int64_t> staircase;  // used -> least time with at most that many assigned, decreasing
    kept.clear();
    for (Partial& partial : partials) {
      auto above = staircase.upper_bound(partial.used);
      if (above != staircase.begin() && std::prev(above)->second <= partial.sum.time) continue;
      while (above != staircase.end() && above->second >= partial.sum.time) above = staircase.erase(above);
      staircase[partial.used] = partial.sum.time;
      kept.push_back(std::move(partial));
    }
    partials.swap(kept);
  }
  if (open.size() < 2) {
    std::sort(partials.begin(), partials.end(),
              [](const Partial& a, const Partial& b) { return by_memory(a.sum, b.sum); });
  }
  for (Partial& partial : partials) {
    if (!items.sums.empty() && partial.sum.time >= items.sums.back().time) continue;
    items.sums.push_back(partial.sum);
    auto& counts = items.counts.emplace_back(std::move(partial.counts));
    if (n > partial.used) counts.emplace_back(cheapest, static_cast<int32_t>(n - partial.used));
  }
  return true;
}

}  // namespace

ReducedCosts reduced_costs(const std::vector<Group>& groups, Multiplier multiplier) {
  const int128 p = multiplier.numerator, q = multiplier.denominator;
  ReducedCosts costs;
  costs.of.resize(groups.size());
  costs.cheapest.resize(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& options = groups[g].options;
    int128 least = 0;
    for (size_t k = 0; k < options.size(); ++k) {
      const int128 priced = q * options[k].time_ps + p * options[k].memory_bytes;
      if (k == 0 || priced < least) least = priced, costs.cheapest[g] = static_cast<int>(k);
    }
    costs.of[g].resize(options.size());
    for (size_t k = 0; k < options.size(); ++k) {
      const int128 r = (q * options[k].time_ps + p * options[k].memory_bytes - least) / q;
      costs.of[g][k] = r > kLargestSum ? kLargestSum : static_cast<int64_t>(r);
    }
  }
  return costs;
}

bool open_groups(Context& context, int64_t allowance, OpenGroups& result) {
  for (size_t g = 0; g < context.groups.size(); ++g) {
    Items items;
    if (!make_items(context, g, allowance, items)) return false;
    if (items.sums.size() == 1) {
      result.base.memory += items.sums[0].memory;
      result.base.time += items.sums[0].time;
      result.base.reduced += items.sums[0].reduced;
      result.closed.push_back(std::move(items));
    } else {
      result.open.push_back(std::move(items));
    }
  }
  std::stable_sort(result.open.begin(), result.open.end(),
                   [](const Items& a, const Items& b) { return a.least_alternative > b.least_alternative; });
  return true;
}

void take(const Items& items, size_t item, std::vector<std::vector<int64_t>>& counts) {
  for (const auto& [k, c] : items.counts[item]) counts[items.group][k] += c;
}

}  // namespace osdp::search
