// Labels: partial plans with a time and two amounts of memory (Note [Label setting]), and operations on lists
// of them.
#pragma once

#include <limits>

#include "search/problem/problem.hpp"

namespace osdp::search {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct Label {
  int64_t time = 0;
  int64_t before = 0;
  int64_t peak = 0;
  uint32_t parent = 0;  // index into the list it was extended from
  uint32_t item = 0;    // index of the item that was added
};

// A list under construction that keeps only the fastest of labels with equal memory. Most duplicates are
// permutations of choices among equal segments.
class UniqueLabels {
 public:
  explicit UniqueLabels(std::vector<Label>& list) : list_(list), slots_(size_t{1} << 9, 0) {}
  void add(const Label& p) {
    if (2 * list_.size() >= slots_.size()) grow();
    uint32_t& slot = find(p);
    if (slot == 0) {
      list_.push_back(p);
      slot = static_cast<uint32_t>(list_.size());
    } else if (p.time < list_[slot - 1].time) {
      list_[slot - 1] = p;
    }
  }

 private:
  uint32_t& find(const Label& p);
  void grow();
  std::vector<Label>& list_;
  std::vector<uint32_t> slots_;  // index + 1, 0: free
};

// Sorts by time and drops labels that are dominated in time, `before` and `peak`.
void drop_dominated(std::vector<Label>& list);

}  // namespace osdp::search
