// The kernels of split_embedding.hpp below autograd, for every device.
#include "ops/split_embedding.hpp"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "ops/split_shape.hpp"
#include "ops/weight_slices.hpp"

namespace osdp::ops {
namespace {

// Note [Look-ups in slices]
//   split  forward                                   gradient of slice i
//   out    y[p] = W_i[index[p] - first row of i],    of the positions p of its rows
//          for the positions p of the rows of i
//   in     y[:, cols_i] = W_i[index]                 of all positions, of grad[:, cols_i]
// The positions of every slice of rows come from one stable sort of the indices; an accelerator waits for
// their numbers once per forward. Every rank acquires every slice and makes every gradient, whatever its
// indices are, since these are collective. Rows are copied at most a slice's number at a time, so that the
// copy is no larger than the slice. Backward reads no slice: the gradient of a slice is what torch makes for
// a table of these rows, where indices of other slices are padding. Rows are summed in the order of
// positions, as in one table.

void check_indices(const at::Tensor& indices) {
  TORCH_CHECK_TYPE(indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt,
                   "osdp::split_embedding: indices are ", indices.scalar_type(), "; expected Long or Int");
}

std::vector<int64_t> with_columns(const at::Tensor& indices, int64_t columns) {
  auto sizes = indices.sizes().vec();
  sizes.push_back(columns);
  return sizes;
}

// Positions in `flat` by slice of rows.
class PositionsBySlice {
 public:
  PositionsBySlice(const SplitShape& shape, const at::Tensor& flat) {
    std::tie(indices_, positions_) = flat.sort(/*stable=*/true, 0, /*descending=*/false);
    const at::Tensor slices = at::arange(shape.granularity + 1, flat.options());  // slice_begin of each
    const int64_t rest = shape.rows() % shape.granularity;
    const at::Tensor borders =
        slices.mul(shape.rows() / shape.granularity).add_(slices.mul(rest).floor_divide_(shape.granularity));
    const at::Tensor first = at::searchsorted(indices_, borders).to(at::kCPU, at::kLong);
    first_.assign(first.const_data_ptr<int64_t>(), first.const_data_ptr<int64_t>() + first.numel());
    TORCH_CHECK_INDEX(first_.front() == 0 && first_.back() == flat.numel(),
                      "osdp::split_embedding: index out of range: the table has ", shape.out_features,
                      " rows, and there is an index ",
                      (first_.front() > 0 ? indices_[0] : indices_[-1]).item().toLong());
  }
  int64_t begin(int64_t slice) const { return first_[slice]; }
  int64_t end(int64_t slice) const { return first_[slice + 1]; }
  at::Tensor positions(int64_t begin, int64_t count) const { return positions_.narrow(0, begin, count); }
  at::Tensor indices(int64_t begin, int64_t count) const { return indices_.narrow(0, begin, count); }

 private:
  at::Tensor indices_, positions_;  // sorted by index
  std::vector<int64_t> first_;      // of each slice, and the number of all
};

at::Tensor look_up(const at::Tensor& indices, const at::Tensor& weight, int64_t rows, int64_t columns,
                   int64_t, int64_t granularity, int64_t split, int64_t source) {
  const SplitShape shape(rows, columns, granularity, split);
  check_indices(indices);
  const WeightSlices slices(shape, weight, source);
  const at::Tensor flat = indices.reshape({-1});
  std::optional<PositionsBySlice> by_slice;
  if (shape.by_out()) by_slice.emplace(shape, flat);
  const int64_t most = std::max<int64_t>(1, shape.slice_rows(granularity - 1));
  at::Tensor y;
  for (int64_t i = 0; i < granularity; ++i) {
    const AcquiredSlice w =
        slices.acquire(i, i + 1 < granularity ? i + 1 : -1, std::nullopt, indices.device());
    if (!y.defined()) y = at::empty({flat.numel(), columns}, w.tensor().options());
    const int64_t end = by_slice ? by_slice->end(i) : flat.numel();
    for (int64_t p = by_slice ? by_slice->begin(i) : 0; p < end; p += most) {
      const int64_t count = std::min(most, end - p);
      if (by_slice) {
        const at::Tensor own = by_slice->indices(p, count).sub(shape.begin(i));
        y.index_copy_(0, by_slice->positions(p, count), w.tensor().index_select(0, own));
      } else {
        at::Tensor part = y.narrow(0, p, count).narrow(1, shape.begin(i), shape.width(i));
        part.copy_(w.tensor().index_select(0, flat.narrow(0, p, count)));
      }
    }
  }
  return y.view(with_columns(indices, columns));
}

at::Tensor look_up_backward(const at::Tensor& grad, const at::Tensor& indices, int64_t rows, int64_t columns,
                            int64_t padding_idx, int64_t granularity, int64_t split, int64_t source,
                            at::ScalarType weight_dtype) {
  const SplitShape shape(rows, columns, granularity, split);
  check_indices(indices);
  const at::Tensor flat = indices.reshape({-1});
  TORCH_CHECK(grad.dim() >= 1 && grad.size(-1) == columns && grad.numel() == flat.numel() * columns,
              "osdp::split_embedding_backward: grad is ", grad.sizes(), " for indices ", indices.sizes(),
              " of rows of ", columns);
  const at::Tensor gout = grad.reshape({flat.numel(), columns});
  const std::shared_ptr<SliceSource> put_to = source == 0 ? nullptr : find_source(source);
  at::Tensor all;
  if (!put_to) all = at::empty({shape.packed_rows(), shape.slice_cols()}, grad.options().dtype(weight_dtype));
  for (int64_t i = granularity - 1; i >= 0; --i) {
    at::Tensor own = flat, grad_of_own = gout, gradient;
    int64_t padding = padding_idx;
    if (shape.by_out()) {
      const int64_t first = shape.begin(i);
      const at::Tensor other = flat.lt(first).logical_or_(flat.ge(first + shape.slice_rows(i)));
      if (padding_idx >= 0) other.logical_or_(flat.eq(padding_idx));
      own = flat.sub(first).masked_fill_(other, -1);
      padding = -1;
    } else {
      grad_of_own = gout.narrow(1, shape.begin(i), shape.width(i));
    }
    gradient = at::embedding_dense_backward(grad_of_own, own, shape.slice_rows(i), padding,
                                            /*scale_grad_by_freq=*/false);
    if (put_to)
      put_to->put_grad(i, gradient.to(weight_dtype));
    else
      all.narrow(0, shape.packed_begin(i), shape.slice_rows(i)).copy_(gradient);
  }
  return all;
}

}  // namespace

TORCH_LIBRARY_IMPL(osdp, CompositeExplicitAutograd, m) {
  m.impl("split_embedding", look_up);
  m.impl("split_embedding_backward", look_up_backward);
}

}  // namespace osdp::ops
