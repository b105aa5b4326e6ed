#include "comm/arithmetic.hpp"

#include <ATen/Functions.h>

#include <tuple>
#include <utility>

#include "comm/packing.hpp"
#include "ops/accumulate.hpp"

namespace osdp::comm {
namespace {

void set_on_cpu(const at::Tensor& to, const at::Tensor& from) {
  const auto narrow = ops::elementwise_dtype(to), wide = ops::elementwise_dtype(from);
  if (narrow && wide)
    elementwise::cast(to.mutable_data_ptr(), *narrow, from.const_data_ptr(), *wide, from.numel());
  else
    to.copy_(from);
}

void add_on_cpu(const at::Tensor& sum, const at::Tensor& addend, double factor) {
  const auto dtype = ops::elementwise_dtype(sum), added = ops::elementwise_dtype(addend);
  if (dtype && added)
    elementwise::accumulate(sum.mutable_data_ptr(), *dtype, addend.const_data_ptr(), *added, sum.numel(),
                            factor);
  else
    sum.add_(addend, factor);
}

void scale_on_cpu(const at::Tensor& tensor, double factor) {
  if (const auto dtype = ops::elementwise_dtype(tensor))
    elementwise::scale(tensor.mutable_data_ptr(), *dtype, tensor.numel(), factor);
  else
    tensor.mul_(factor);
}

// Operations that one launch can execute: one dtype of what is written, one of what is read, and one factor.
struct Alike {
  at::ScalarType to, from;
  double factor;
  std::vector<at::Tensor> written, read;

  static Alike& of(std::vector<Alike>& groups, at::ScalarType to, at::ScalarType from, double factor) {
    for (Alike& group : groups)
      if (std::tie(group.to, group.from, group.factor) == std::tie(to, from, factor)) return group;
    return groups.emplace_back(Alike{to, from, factor, {}, {}});
  }
};

// The fast path of foreach operators needs dense tensors with equal strides; others are processed one by one.
bool one_order(const at::Tensor& a, const at::Tensor& b) {
  return a.is_non_overlapping_and_dense() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

}  // namespace

void Batch::set(at::Tensor to, const at::Tensor& from, double factor) {
  if (to.sizes() != from.sizes()) to = to.view(from.sizes());
  if (!to.is_cpu()) return sets_.push_back({std::move(to), from, factor});
  set_on_cpu(to, from);
  if (factor != 1.0) scale_on_cpu(to, factor);
}

void Batch::add(at::Tensor sum, const at::Tensor& addend, double factor) {
  if (!sum.is_cpu()) return sums_.push_back({std::move(sum), addend, factor});
  add_on_cpu(sum, addend, factor);
}

void Batch::scale(at::Tensor tensor, double factor) {
  if (factor == 1.0) return;
  if (!tensor.is_cpu()) return scalings_.push_back({std::move(tensor), {}, factor});
  scale_on_cpu(tensor, factor);
}

void Batch::zero(at::Tensor tensor) {
  if (!tensor.is_cpu()) return zeros_.push_back(std::move(tensor));
  tensor.zero_();
}

void Batch::run() {
  std::vector<Alike> copies, sums, scalings;
  for (const Operation& o : std::exchange(sets_, {})) {
    const auto to = o.to.scalar_type(), from = o.from.scalar_type();
    if (o.from.is_cpu() || !one_order(o.to, o.from)) {
      o.to.copy_(o.from, /*non_blocking=*/true);
    } else {
      Alike& group = Alike::of(copies, to, from, 1.0);
      group.written.push_back(o.to), group.read.push_back(o.from);
    }
    if (o.factor != 1.0) Alike::of(scalings, to, to, o.factor).written.push_back(o.to);
  }
  for (Operation& o : std::exchange(sums_, {})) {
    const auto to = o.to.scalar_type();
    if (o.from.scalar_type() != to) {
      // No foreach launch adds tensors of two dtypes, so small addends are widened first. That takes little
      // memory and does not round.
      if (o.from.nbytes() > kSmallBytes || at::promote_types(to, o.from.scalar_type()) != to) {
        o.to.add_(o.from, o.factor);
        continue;
      }
      at::Tensor wide = at::empty_like(o.from, o.from.options().dtype(to));
      Alike& group = Alike::of(copies, to, o.from.scalar_type(), 1.0);
      group.written.push_back(wide), group.read.push_back(std::exchange(o.from, wide));
    }
    Alike& group = Alike::of(sums, to, to, o.factor);
    group.written.push_back(o.to), group.read.push_back(o.from);
  }
  for (const Operation& o : std::exchange(scalings_, {}))
    Alike::of(scalings, o.to.scalar_type(), o.to.scalar_type(), o.factor).written.push_back(o.to);
  for (const Alike& group : copies) at::_foreach_copy_(group.written, group.read);
  for (const Alike& group : sums) at::_foreach_add_(group.written, group.read, group.factor);
  for (const Alike& group : scalings) at::_foreach_mul_(group.written, group.factor);
  if (!zeros_.empty()) at::_foreach_zero_(std::exchange(zeros_, {}));
}

}  // namespace osdp::comm
