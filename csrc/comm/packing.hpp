// Packing: small tensors that travel in one, behind each other.
//
// Note [Small tensors travel together]
// A collective of a few KiB is all latency. The small tensors of a unit or bucket share one: they are packed
// behind each other, and the result is copied out, which costs less than another collective would.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace osdp::runtime {

constexpr size_t kSmallBytes = 64 * 1024;

// Tensors behind each other in a flat one.
struct FlatPack {
  at::Tensor flat;
  std::vector<at::Tensor> parts;  // of `flat`, one for each count

  FlatPack(const std::vector<int64_t>& counts, const at::TensorOptions& options);  // not filled
  FlatPack(at::Tensor packed, const std::vector<int64_t>& counts)
      : flat(std::move(packed)), parts(flat.split_with_sizes(counts)) {}
};

// Those tensors of a collective that are cut over the ranks and are of one dtype: a row for each rank, in
// which its chunks lie behind each other.
struct ChunkPack {
  at::ScalarType dtype;
  std::vector<size_t> members;  // which of the collective's tensors
  std::vector<int64_t> widths;  // elements of a chunk of each
  int64_t width = 0;            // of a row

  // Into the pack of its dtype.
  static void put(std::vector<ChunkPack>& packs, at::ScalarType dtype, size_t member, int64_t chunk_elements);
};

// `all` [chunks, sum of the widths]: row r has chunk r of each tensor, one behind the other. A tensor is
// taken as rows, of which a chunk has tensors[i].size(0) / chunks, rounded up; zeros for those that are
// missing. Cast to `all`'s dtype. Together is what small tensors are for: they are a copy each on the CPU.
void join_chunks(const at::Tensor& all, const std::vector<at::Tensor>& tensors);

// The way back: columns[i] [chunks, width of i], contiguous.
void split_columns(const std::vector<at::Tensor>& columns, const at::Tensor& all);

}  // namespace osdp::runtime
