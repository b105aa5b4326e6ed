// The slices of a split operator: its sharded ones, of two sizes at most, and all others together.
#pragma once

#include <cstdint>

#include "modes.hpp"
#include "search/problem/model.hpp"

namespace osdp::search {

// The dimension along which the operator is computed in g slices. None: it can't be. Rows of the weight as it
// is stored need no packing, and may leave a rest; columns have to be divisible by g.
inline Split split_of(const Operator& op, int64_t g) {
  const int64_t rows = op.transposed ? op.in_features : op.out_features,
                columns = op.transposed ? op.out_features : op.in_features;
  const Split by_rows = op.transposed ? Split::In : Split::Out,
              by_columns = op.transposed ? Split::Out : Split::In;
  if (op.split_tensor < 0 || g < 2) return Split::None;
  if (rows % g == 0) return by_rows;
  if (!op.convolution && slices_fit(columns, g, false)) return by_columns;
  return slices_fit(rows, g, true) ? by_rows : Split::None;
}

struct Slices {
  bool by_rows;                // of the weight as it is stored
  int64_t rows, columns;       // of the whole weight
  int64_t length;              // of the dimension that is split
  int64_t large, small;        // parts of that: of the largest slice, and of one that may be shorter by one
  int64_t of_large, of_small;  // the number of sharded slices of each size
  int64_t whole;               // the part of all replicated slices

  Slices(const Operator& op, int64_t granularity, int64_t sharded, Split split)
      : by_rows((split == Split::Out) != op.transposed),
        rows(op.transposed ? op.in_features : op.out_features),
        columns(op.transposed ? op.out_features : op.in_features),
        length(by_rows ? rows : columns),
        large((length + granularity - 1) / granularity),
        small(length / granularity),
        whole(slice_begin(length, granularity, granularity - sharded)) {
    of_large = large == small ? sharded : length - whole - sharded * small;
    of_small = sharded - of_large;
  }

  // The bytes of a part of the weight, which has `all`.
  int64_t bytes(int64_t all, int64_t part) const {
    return static_cast<int64_t>(static_cast<__int128>(all) * part / length);
  }
  int64_t rows_of(int64_t part) const { return by_rows ? part : rows; }
  int64_t columns_of(int64_t part) const { return by_rows ? columns : part; }
  // The sum over all sharded slices of what `of` says of one.
  template <class Of>
  auto sum(Of of) const {
    using Value = decltype(of(large));
    const Value large_ones = static_cast<Value>(of_large) * of(large);
    return of_small == 0 ? large_ones : large_ones + static_cast<Value>(of_small) * of(small);
  }
};

// Whether products with slices of the weight are summed in float: those of 16 bits.
inline bool sums_in_float(const Operator& op) {
  return op.tensors[op.split_tensor].compute_bytes() == 2 * op.out_features * op.in_features;
}

// How much less of its weight a convolution in slices copies.
inline int64_t fewer_copies(const Operator& op, const Slices& slices) {
  const int64_t all = copies_of_weight(op);
  return all - slices.bytes(all, slices.large);
}

}  // namespace osdp::search
