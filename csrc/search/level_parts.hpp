// The three parts of the groups, and the lists of their sums. See Note [Levels].
#pragma once

#include "search/level_rest.hpp"

namespace osdp::search::levels {

// The sums over some of the groups.
struct Part {
  size_t first = 0, end = 0;  // its groups, in the order of Parts::placed
  std::vector<Point> sums;    // Y and Z: a tree, sums[0] is where every group takes its first item
  std::vector<std::vector<Point>> stages;  // X: stages[j] are the sums over the first j groups, sorted
  // The sums over all its groups, sorted by level and position, equal places once:
  std::vector<Row> rows;
  std::vector<int64_t> positions;
  std::vector<uint32_t> order;  // order[i]: index into sums (X: its last stage) of positions[i]
};

class Parts {
 public:
  Parts(Context& context, std::vector<Placed> items, Rest rest)
      : placed(std::move(items)), c_(context), rest_(std::move(rest)) {}

  // X with at most `most` sums, which grows from call to call; Y and Z over the groups that are left, at most
  // 4 * most each. False if those were cut off, or stopped.
  bool make(size_t most, const std::vector<Target>& targets);

  Part x, y, z;
  std::vector<Placed> placed;  // the most critical first; after make() X's, Y's, Z's

 private:
  bool add_group(Part& part, size_t most);
  bool walk(Part& part, size_t next, uint32_t from, size_t most);
  void sort(Part& part);

  struct Key {
    int64_t position = 0;
    uint32_t sum = 0;
  };
  static void sort_by_position(std::vector<Key>& keys, std::vector<Key>& scratch);

  Context& c_;
  Rest rest_;
  std::vector<Key> keys_;
  std::vector<Point> scratch_;
  size_t held_ = 0;  // points in X's stages
};

}  // namespace osdp::search::levels
