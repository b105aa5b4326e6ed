// The lattice's coordinates: a level and a position for each of the open groups' items. See Note [Levels].
#pragma once

#include "search/items.hpp"

namespace osdp::search::levels {

constexpr int64_t kFar = int64_t{1} << 60;  // coordinates beyond this: not for this technique
constexpr int64_t kMostLevels = 4096;       // levels of partial sums

struct Vector {
  int128 time = 0, memory = 0;  // picoseconds and bytes
};

// What an item adds to the sum of all groups' first items is level * v + position * u.
struct Basis {
  Vector start;    // the sum of all groups' first items: level 0, position 0
  Vector u, v;     // from point to point of a line, and from line to line
  int128 det = 0;  // v x u, never 0; items' coordinates divide by it
};

// An item in the lattice's coordinates, or a partial sum: a tree, where a sum is its parent and one item.
struct Point {
  int64_t position = 0, reduced = 0;
  int32_t level = 0;
  uint32_t parent = 0;
  uint32_t group = 0, item = 0;  // indices into Parts::placed and its points; of an item: into Items::sums
};

struct Placed {
  size_t group = 0;           // index into OpenGroups::open
  std::vector<Point> points;  // by reduced cost; points[0] is (0, 0)
};

// False where there is no plane lattice, or one too far stretched. Raises context's bound to the lattice's.
bool choose_basis(Context& context, const OpenGroups& groups, Basis& basis);

// Items of all groups, the most critical group first. False where coordinates are too large.
bool place_items(const OpenGroups& groups, const Basis& basis, std::vector<Placed>& placed);

}  // namespace osdp::search::levels
