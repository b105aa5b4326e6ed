#include "comm/packing.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/arithmetic.hpp"

namespace osdp::comm {

FlatPack::FlatPack(const std::vector<int64_t>& counts, const at::TensorOptions& options)
    : FlatPack(at::empty({std::accumulate(counts.begin(), counts.end(), int64_t{0})}, options), counts) {}

void ChunkPack::put(std::vector<ChunkPack>& packs, at::ScalarType dtype, size_t member,
                    int64_t chunk_elements) {
  auto at = std::find_if(packs.begin(), packs.end(), [&](const ChunkPack& p) { return p.dtype == dtype; });
  if (at == packs.end()) at = packs.insert(at, {dtype, {}, {}, 0});
  at->members.push_back(member);
  at->widths.push_back(chunk_elements);
  at->width += chunk_elements;
}

namespace {

// Copies the tensor's chunks, cast and padded with zeros, into `columns` [chunks, width]: on the CPU, without
// temporaries.
void put_chunks(const at::Tensor& columns, const at::Tensor& tensor) {
  const at::Tensor flat = tensor.reshape({-1});
  const int64_t width = columns.size(1);
  Batch batch;  // on the CPU it runs immediately, so run() is not needed
  for (int64_t r = 0; r < columns.size(0); ++r) {
    const at::Tensor row = columns.select(0, r);
    const int64_t n = std::clamp<int64_t>(flat.numel() - r * width, 0, width);
    if (n > 0) batch.set(row.narrow(0, 0, n), flat.narrow(0, r * width, n));
    if (n < width) batch.zero(row.narrow(0, n, width - n));
  }
}

}  // namespace

void join_chunks(const at::Tensor& all, const std::vector<at::Tensor>& tensors) {
  const int64_t chunks = all.size(0);
  std::vector<at::Tensor> parts;
  if (all.is_cpu()) {
    int64_t begin = 0;
    for (const at::Tensor& t : tensors) {
      const int64_t rows = (t.size(0) + chunks - 1) / chunks;
      const int64_t width = t.size(0) == 0 ? 0 : rows * (t.numel() / t.size(0));
      put_chunks(all.narrow(1, begin, width), t);
      begin += width;
    }
    return;
  }
  bool alike = true;
  for (const at::Tensor& t : tensors) alike &= t.scalar_type() == tensors[0].scalar_type();
  for (const at::Tensor& t : tensors)
    if (t.numel() > 0) parts.push_back(alike ? t : t.to(all.scalar_type()));
  at::Tensor out = all;
  if (!parts.empty()) at::_chunk_cat_out(out, parts, 0, chunks);
}

void split_columns(const std::vector<at::Tensor>& columns, const at::Tensor& all) {
  std::vector<int64_t> widths;
  for (const at::Tensor& part : columns) widths.push_back(part.size(1));
  if (!all.is_cpu()) return at::split_with_sizes_copy_out(columns, all, widths, 1);
  int64_t begin = 0;
  for (size_t i = 0; i < columns.size(); begin += widths[i], ++i)
    columns[i].copy_(all.narrow(1, begin, widths[i]));
}

}  // namespace osdp::comm
