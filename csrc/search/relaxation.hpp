// The Lagrangian relaxation of the planner's problem under a few rows (phases.hpp): each row has a price per
// byte, and every operator and block chooses for itself. Its optimum over the prices bounds all plans of a
// box of batch sizes, transients and recomputations from below.
//
// Doubles: bounds are used with a margin, and whatever is claimed in the end is proven in integers.
#pragma once

#include <array>

#include "search/phases.hpp"

namespace osdp::search {

inline constexpr size_t kMostRows = 24;
using Prices = std::array<double, kMostRows>;  // picoseconds per byte, by row

// The options of every group under some rows and one number of micro-batches, without the dominated ones.
struct Table {
  struct Options {
    std::vector<int> candidate;  // index into the slot's candidates
    std::vector<int64_t> transient;
    std::vector<double> time;
    std::vector<double> bytes;  // [row][option]
    std::vector<char> corner;   // 0: a mixture of two others is no worse, so no price likes it best
  };
  struct Way {
    Recompute way;
    std::vector<Options> slots;
    std::vector<Linear> kept;  // by row
    int64_t time_per_sample = 0;
  };
  struct Entry {
    int count = 0;  // instances
    size_t first_way = 0;
    std::vector<Way> ways;
  };
  size_t rows = 0;
  std::vector<Cohort> groups;
  std::vector<Entry> entries;  // beside groups
  size_t ways = 0;             // over all groups
};
Table make_table(const Kinds& kinds, const std::vector<int>& rows, int64_t accumulation);

// How many instances of each group are treated each way: between lo and hi, by Entry::first_way + index.
struct Box {
  std::vector<int> lo, hi;
};
Box everything(const Table& table);

struct Region {
  Batch fastest;              // time counts at this batch size,
  Batch leanest;              // memory at this one
  int64_t largest_transient;  // options with more are out
  int64_t reserved_bytes;     // off the limit
  Box box;
  double tolerance = 1e-11;  // how near to the best bound is near enough, as a share of it
};

struct Bounded {
  bool feasible = false;  // false: no plan of the region keeps all rows
  double time = 0;        // no plan of the region is faster, but for rounding
  double error = 0;       // the rounding
  Prices prices{};        // that prove it
  size_t row = 0;         // with the highest price
  std::vector<int> ways;  // whole numbers near the optimum, as Box
};

// `guess`: prices to begin with, a neighbouring region's. Regions whose bound reaches `enough` are not
// bounded any better.
Bounded relax(const Kinds& kinds, const Table& table, const Request& request, const Region& region,
              const Prices& guess, double enough);

}  // namespace osdp::search
