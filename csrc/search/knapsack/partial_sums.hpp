// Lists of partial sums over some groups, sorted and without the dominated ones.
#pragma once

#include "search/problem/dominance.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {

// One assignment of options to a group's operators, or a sum of such assignments over several groups.
struct Sum {
  int64_t memory = 0, time = 0, reduced = 0;
  uint32_t parent = 0;  // index into the list it was extended from
  uint32_t item = 0;    // index of the item that was added
};

inline bool by_memory(const Sum& a, const Sum& b) {
  return a.memory != b.memory ? a.memory < b.memory : a.time < b.time;
}

// Keeps the undominated sums; `list` is sorted by_memory.
inline void drop_dominated(std::vector<Sum>& list) {
  drop_dominated(list, [](const Sum& a, const Sum& b) { return a.time <= b.time; }, 1);
}

// Merges sorted runs that begin at `starts` into one sorted list, pairwise; stable.
template <class T, class Less>
void merge_runs(std::vector<T>& list, std::vector<size_t> starts, std::vector<T>& scratch, Less less) {
  while (starts.size() > 1) {
    scratch.resize(list.size());
    std::vector<size_t> next;
    for (size_t r = 0; r < starts.size(); r += 2) {
      const size_t begin = starts[r];
      const size_t middle = r + 1 < starts.size() ? starts[r + 1] : list.size();
      const size_t end = r + 2 < starts.size() ? starts[r + 2] : list.size();
      const auto at = [&](size_t i) { return list.begin() + static_cast<ptrdiff_t>(i); };
      next.push_back(begin);
      std::merge(at(begin), at(middle), at(middle), at(end), scratch.begin() + static_cast<ptrdiff_t>(begin),
                 less);
    }
    list.swap(scratch);
    starts.swap(next);
  }
}

}  // namespace osdp::search
