// Packing: small tensors that are sent concatenated in one buffer.
//
// Note [Small tensors travel together]
// A collective of a few KiB is pure latency. The small tensors of a unit or bucket share one: they are
// concatenated, and the result is copied out, which costs less than another collective would.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace osdp::comm {

constexpr size_t kSmallBytes = 64 * 1024;

// Tensors concatenated in a flat one.
struct FlatPack {
  at::Tensor flat;
  std::vector<at::Tensor> parts;  // views of `flat`, one per count

  FlatPack(const std::vector<int64_t>& counts, const at::TensorOptions& options);  // not filled
  FlatPack(at::Tensor packed, const std::vector<int64_t>& counts)
      : flat(std::move(packed)), parts(flat.split_with_sizes(counts)) {}
};

// The small tensors of one dtype in a collective that shards them: a row for each rank, which is the
// concatenation of its chunks.
struct ChunkPack {
  at::ScalarType dtype;
  std::vector<size_t> members;  // indices of the collective's tensors
  std::vector<int64_t> widths;  // elements in a chunk of each
  int64_t width = 0;            // of a row

  // Adds a tensor to the pack of its dtype.
  static void put(std::vector<ChunkPack>& packs, at::ScalarType dtype, size_t member, int64_t chunk_elements);
};

// `all` [chunks, sum of the widths]: row r is the concatenation of chunk r of each tensor. A chunk has
// ceil(tensors[i].size(0) / chunks) rows of a tensor; missing rows are zeros. Cast to `all`'s dtype. For
// small tensors only: on the CPU each is copied.
void join_chunks(const at::Tensor& all, const std::vector<at::Tensor>& tensors);

// The inverse: columns[i] [chunks, width of i], contiguous.
void split_columns(const std::vector<at::Tensor>& columns, const at::Tensor& all);

}  // namespace osdp::comm
