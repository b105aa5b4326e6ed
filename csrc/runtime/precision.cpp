#include "runtime/precision.hpp"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/ScalarType.h>

#include <cmath>
#include <utility>

#include "kernels/kernels.hpp"
#include "runtime/arithmetic.hpp"
#include "runtime/runtime.hpp"

namespace osdp::runtime {

// It copies what is fp32; under mixed precision little or nothing is.
bool Runtime::autocast_copies() const {
  if (params_.empty() || !at::autocast::is_autocast_enabled(device_.type())) return false;
  for (const auto& p : params_)
    if (!p->mixed() && p->own_dtype() == at::kFloat) return true;
  return false;
}

void cast_into(at::Tensor to, const at::Tensor& from) {
  const auto wide = kernel_dtype(from.scalar_type()), narrow = kernel_dtype(to.scalar_type());
  const bool plain = to.is_cpu() && from.is_cpu() && to.is_contiguous() && from.is_contiguous();
  if (wide && narrow && plain)
    kernels::cast(kernels::Device::CPU, to.mutable_data_ptr(), *narrow, from.const_data_ptr(), *wide,
                  from.numel());
  else
    to.copy_(from);
}

at::Tensor wide_sum(at::Tensor a, const at::Tensor& b, at::ScalarType own) {
  const auto wide = at::promote_types(a.scalar_type(), own);
  return a.scalar_type() == wide ? a.add_(b) : a.to(wide).add_(b);
}

void add_mean(at::Tensor& gradient, const at::Tensor& mean, at::ScalarType own, double headroom) {
  if (gradient.defined()) return add_into(gradient, mean, 1.0 / headroom);
  if (mean.scalar_type() == own) {
    gradient = mean;
  } else {
    gradient = Lane::empty(mean.sizes(), mean.options().dtype(own));
    cast_into(gradient, mean);
  }
  if (headroom != 1.0) scale_by(gradient, 1.0 / headroom);
}

double headroom_of(at::ScalarType reduce, int64_t world) {
  if (reduce != at::kHalf || world == 1) return 1.0;
  return std::exp2(-std::ceil(std::log2(static_cast<double>(world)) / 2));
}

void average(Collectives& collectives, at::ScalarType reduce, std::vector<Averaged>& gradients) {
  int64_t elements = 0;
  std::vector<int64_t> counts;
  for (const Averaged& a : gradients) counts.push_back(a.gradient.numel()), elements += counts.back();
  const double headroom = headroom_of(reduce, collectives.world());
  at::Tensor flat = Lane::empty({elements}, gradients[0].gradient.options().dtype(reduce));
  const auto each = [&](const auto& what) {
    int64_t at = 0;
    for (size_t i = 0; i < gradients.size(); at += counts[i], ++i)
      what(gradients[i], flat.narrow(0, at, counts[i]));
  };
  each([](Averaged& a, const at::Tensor& part) {
    cast_into(part.view(a.gradient.sizes()), a.gradient);
    if (!a.replaces) Lane::keep(std::exchange(a.gradient, at::Tensor()));
  });
  if (headroom != 1.0) scale_by(flat, headroom);
  collectives.all_reduce_mean({flat});
  each([&](Averaged& a, const at::Tensor& part) {
    const at::ScalarType own = a.param->own_dtype();
    if (a.replaces) {
      cast_into(a.kept, part.view(a.kept.sizes()));
      if (headroom != 1.0) scale_by(a.kept, 1.0 / headroom);
    } else if (a.kept.defined()) {
      add_mean(a.kept, part.view(a.kept.sizes()), own, headroom);
    } else {
      // Its own memory: `flat` must not live as long as one of the gradients.
      at::Tensor& gradient = a.param->local_grad();
      gradient = Lane::empty(a.param->full_sizes(), part.options().dtype(own));
      cast_into(gradient, part.view(a.param->full_sizes()));
      if (headroom != 1.0) scale_by(gradient, 1.0 / headroom);
    }
  });
}

void WholeCopy::enter(bool fresh) {
  if (owner_->inside()) return;
  const at::Tensor own = owner_->tensor().variable_data();
  if (owner_->compute_dtype() == owner_->own_dtype()) return owner_->enter(at::Tensor());
  if (!copy_.defined()) {
    copy_ = own.to(owner_->compute_dtype());
  } else if (fresh) {
    copy_.copy_(own);
  }
  owner_->enter(copy_);
}

}  // namespace osdp::runtime
