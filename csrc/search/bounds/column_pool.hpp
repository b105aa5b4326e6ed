// The options of every symmetry class under a few rows, and the box of recomputations that a region allows.
#pragma once

#include <array>

#include "search/problem/phases.hpp"

namespace osdp::search {

inline constexpr size_t kMostRows = 24;
using Prices = std::array<double, kMostRows>;  // picoseconds per byte, by row

// The options of every group under some rows and one number of micro-batches.
struct ColumnPool {
  struct Options {
    std::vector<double> time;   // by index into the slot's candidates
    std::vector<double> bytes;  // [row][option]
  };
  struct Way {
    Recompute way;
    std::vector<Options> slots;
    std::vector<Linear> kept;  // by row
    Linear recompute_ps;       // of a micro-batch
  };
  struct Entry {
    int count = 0;  // instances
    size_t first_way = 0;
    std::vector<Way> ways;
  };
  size_t rows = 0;
  std::vector<SymmetryClass> groups;
  std::vector<Entry> entries;  // one per group
  size_t ways = 0;             // over all groups
};
ColumnPool make_column_pool(const EquivalenceClasses& classes, const std::vector<int>& rows,
                            int64_t accumulation);

// Bounds on the number of instances of each group per way, indexed by Entry::first_way + index.
struct Box {
  std::vector<int> lo, hi;
};
Box everything(const ColumnPool& pool);
// Narrows the bounds of each way to what those of the group's other ways allow.
void tighten(const ColumnPool& pool, Box& box);

}  // namespace osdp::search
