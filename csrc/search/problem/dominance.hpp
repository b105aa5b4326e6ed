// Dominance: what is no better than something else in any respect is dropped.
#pragma once

#include <algorithm>
#include <vector>

namespace osdp::search {

// Keeps those that no other one dominates, in their order; of equal ones the first.
template <class T, class NoWorse>
void keep_undominated(std::vector<T>& list, NoWorse no_worse) {
  std::vector<T> kept;
  for (const T& x : list) {
    if (std::any_of(kept.begin(), kept.end(), [&](const T& y) { return no_worse(y, x); })) continue;
    std::erase_if(kept, [&](const T& y) { return no_worse(x, y); });
    kept.push_back(x);
  }
  list.swap(kept);
}

// For lists in which a later one never dominates an earlier one: compares each with the last `look` that are
// kept, which dominate most often.
template <class T, class NoWorse>
void drop_dominated(std::vector<T>& list, NoWorse no_worse, size_t look) {
  size_t kept = 0;
  for (size_t n = 0; n < list.size(); ++n) {
    const auto end = list.begin() + static_cast<std::ptrdiff_t>(kept);
    const auto begin = end - static_cast<std::ptrdiff_t>(std::min(kept, look));
    if (std::any_of(begin, end, [&](const T& x) { return no_worse(x, list[n]); })) continue;
    if (kept != n) list[kept] = std::move(list[n]);
    ++kept;
  }
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(kept), list.end());
}

}  // namespace osdp::search
