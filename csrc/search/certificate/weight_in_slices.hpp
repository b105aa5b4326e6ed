#pragma once

#include <cstdint>
#include <vector>

#include "search/problem/model.hpp"
#include "search/problem/plain_plan.hpp"

namespace osdp::search {

// A weight in slices, counted one by one, for the checkers: it shares no code with problem/slices.hpp. Slices
// are of rows as the weight is stored, or of columns that leave no rest; their rows, or columns, are lines
// here.
struct WeightInSlices {
  int64_t rows, columns;  // of the weight as it is stored
  bool of_rows;
  int64_t lines;                 // of the whole weight
  int64_t replicated;            // lines of all slices that every rank has
  std::vector<int64_t> sharded;  // lines of each of the others
  int64_t smallest;              // lines of a slice, at least

  WeightInSlices(const Operator& op, const PlainPlan::Choice& c)
      : rows(op.transposed ? op.in_features : op.out_features),
        columns(op.transposed ? op.out_features : op.in_features),
        of_rows(c.split == (op.transposed ? Split::In : Split::Out)),
        lines(of_rows ? rows : columns),
        replicated(lines),
        smallest(lines / c.granularity) {
    for (int64_t s = c.granularity - 1; s >= c.granularity - c.sharded_slices; --s) {
      const auto begin = static_cast<int64_t>(static_cast<__int128>(lines) * s / c.granularity);
      sharded.push_back(replicated - begin);
      replicated = begin;
    }
  }
  // Of `bytes` of the whole weight.
  int64_t part(int64_t bytes, int64_t of_lines) const {
    return static_cast<int64_t>(static_cast<__int128>(bytes) * of_lines / lines);
  }
  template <class Of>
  double of_each(Of seconds) const {
    double sum = 0;
    for (const int64_t of_lines : sharded) sum += seconds(of_lines);
    return sum;
  }
};

}  // namespace osdp::search
