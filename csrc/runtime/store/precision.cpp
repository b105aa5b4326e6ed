#include "runtime/store/precision.hpp"

#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>

#include <cmath>
#include <utility>

#include "comm/arithmetic.hpp"
#include "comm/packing.hpp"
#include "ops/accumulate.hpp"

namespace osdp::runtime {

at::Tensor wide_sum(at::Tensor a, const at::Tensor& b, at::ScalarType own) {
  const auto wide = at::promote_types(a.scalar_type(), own);
  if (a.scalar_type() != wide) a = a.to(wide);
  ops::accumulate(a, b);
  return a;
}

double headroom_of(at::ScalarType reduce, int64_t world) {
  if (reduce != at::kHalf || world == 1) return 1.0;
  return std::exp2(-std::ceil(std::log2(static_cast<double>(world)) / 2));
}

at::Tensor joined(int64_t world, at::ScalarType reduce, std::vector<Averaged>& gradients) {
  std::vector<int64_t> counts;
  for (const Averaged& a : gradients) counts.push_back(a.gradient.numel());
  const comm::FlatPack pack(counts, gradients[0].gradient.options().dtype(reduce));
  comm::Batch there;
  for (size_t i = 0; i < gradients.size(); ++i) {
    there.set(pack.parts[i], gradients[i].gradient);
    if (!gradients[i].replaces) gradients[i].gradient.reset();
  }
  there.scale(pack.flat, headroom_of(reduce, world));
  there.run();
  return pack.flat;
}

void average(comm::Collectives& collectives, const at::Tensor& joined, std::vector<Averaged>& gradients) {
  const double headroom = headroom_of(joined.scalar_type(), collectives.world());
  comm::Lane::keep(joined);
  collectives.all_reduce_mean({joined});
  const auto sizes_of = [](const Averaged& a) {
    return a.kept.defined() ? a.kept.sizes() : a.param->full_sizes();
  };
  std::vector<int64_t> counts;
  for (const Averaged& a : gradients) counts.push_back(c10::multiply_integers(sizes_of(a)));
  const comm::FlatPack pack(joined, counts);
  comm::Batch back;
  for (size_t i = 0; i < gradients.size(); ++i) {
    Averaged& a = gradients[i];
    const at::Tensor mean = pack.parts[i].view(sizes_of(a));
    if (a.kept.defined() && !a.replaces) {
      back.add(a.kept, mean, 1.0 / headroom);
    } else {
      // Separate memory: otherwise every gradient would keep all of `joined` alive.
      if (!a.kept.defined())
        a.kept = a.param->local_grad() =
            comm::Lane::empty(mean.sizes(), mean.options().dtype(a.param->own_dtype()));
      back.set(a.kept, mean, 1.0 / headroom);
    }
  }
  back.run();
}

bool WholeCopy::cast(bool fresh) {
  if (owner_->shows_unsharded() || owner_->compute_dtype() == owner_->own_dtype()) return false;
  if (copy_.defined()) return fresh;
  copy_ = at::empty_like(owner_->local(), owner_->local().options().dtype(owner_->compute_dtype()));
  return true;
}

}  // namespace osdp::runtime
