// What the groups that are left must cost at least to end on a target's line: a bound by group and level, by
// dynamic programming. Partial sums that it rules out are never listed. See Note [Levels].
#pragma once

#include "search/level_targets.hpp"

namespace osdp::search::levels {

// Sums of one part on one level.
struct Row {
  int64_t level = 0;
  size_t begin = 0, end = 0;  // its range of Part::positions
  int64_t least_reduced = 0;
};

// Reduced costs in picoseconds. A group is an index into `placed`, whose order may change between calls of
// complete(): at(g, ..) is valid for g >= the last `first`.
class Rest {
 public:
  // How far the levels of partial sums go. False if the tables would be too much work.
  bool limit_levels(const std::vector<Placed>& placed, const std::vector<Target>& targets);
  // Sets the last row, behind all groups: 0 on the targets' levels.
  void start(size_t groups, const std::vector<Target>& targets);
  // The rows of groups `first` and later, backwards from the last one.
  void complete(const std::vector<Placed>& placed, size_t first, Stopwatch& watch);
  // Changes the last row: from now on a part with these sums comes after all other groups.
  void fold(const std::vector<Row>& part);

  // The least reduced costs of groups g and later that lead from `level` to a target; kLargestSum: none do.
  int64_t at(size_t g, int64_t level) const {
    return level < lowest_ || level > highest_ ? kLargestSum : rest_[g][static_cast<size_t>(level - lowest_)];
  }
  int64_t lowest() const { return lowest_; }  // levels of partial sums
  int64_t highest() const { return highest_; }

 private:
  int64_t lowest_ = 0, highest_ = 0;
  std::vector<std::vector<int64_t>> rest_;  // [g][level - lowest_]
};

}  // namespace osdp::search::levels
