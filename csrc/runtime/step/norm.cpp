#include "runtime/step/norm.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace osdp::runtime {

namespace {

// Groups tensors that one foreach operator can process together.
std::vector<std::vector<at::Tensor>> alike(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const at::Tensor& t : tensors) {
    if (t.numel() == 0) continue;
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) {
      return g[0].device() == t.device() && g[0].scalar_type() == t.scalar_type();
    });
    if (group == groups.end())
      groups.push_back({t});
    else
      group->push_back(t);
  }
  return groups;
}

// Non-blocking from the host: pageable memory is read before the call returns.
at::Tensor moved(const at::Tensor& t, at::Device device) { return t.to(device, t.is_cpu()); }

}  // namespace

NormTerms::NormTerms(double norm_type, at::Device device) : norm_type_(norm_type), device_(device) {
  OSDP_CHECK(norm_type > 0, Sharding, "OSDP: the norm of sharded gradients needs a positive ",
             "norm type, got ", norm_type);
}

bool NormTerms::largest() const { return std::isinf(norm_type_); }

at::Tensor NormTerms::merged(const at::Tensor& terms) const { return largest() ? terms.amax() : terms.sum(); }

at::Tensor NormTerms::total() const {
  if (terms_.empty()) return at::zeros({}, at::TensorOptions(device_).dtype(at::kDouble));
  return terms_.size() == 1 ? terms_[0] : merged(at::stack(terms_));
}

void NormTerms::add(const std::vector<at::Tensor>& tensors) {
  for (const auto& group : alike(tensors)) {
    const at::Tensor norms = at::stack(at::_foreach_norm(group, norm_type_)).to(at::kDouble);
    terms_.push_back(moved(merged(largest() ? norms : norms.pow(norm_type_)), device_));
  }
}

void NormTerms::add(const NormTerms& other) { terms_.push_back(moved(other.total(), device_)); }

void NormTerms::reduce(comm::Lane& lane, const faults::TaskNamePtr& name,
                       const std::shared_ptr<comm::Collectives>& collectives) {
  const at::Tensor mine = total();
  if (!largest()) {
    lane.submit(name, [collectives, mine] { collectives->all_reduce_sum(mine); }).wait();
    terms_ = {mine};
    return;
  }
  // A maximum need not propagate NaN, so a NaN flag is reduced beside it.
  const at::Tensor not_a_number = mine.isnan();
  const at::Tensor all = at::stack({mine.masked_fill(not_a_number, 0.0), not_a_number.to(at::kDouble)});
  lane.submit(name, [collectives, all] { collectives->all_reduce_max(all); }).wait();
  terms_ = {all[0].masked_fill(all[1].gt(0), std::numeric_limits<double>::quiet_NaN())};
}

at::Tensor NormTerms::norm(at::ScalarType dtype) const {
  const at::Tensor all = total();
  if (largest()) return all.to(dtype);
  at::Tensor root = at::empty({}, all.options().dtype(dtype));
  return at::pow_out(root, all, 1.0 / norm_type_);
}

void check_finite(const at::Tensor& norm, double norm_type) {
  const auto value = norm.item<double>();
  OSDP_CHECK(std::isfinite(value), Gradient, "the norm of order ", norm_type, " of all gradients is ", value,
             ", on every rank: no gradient was changed. Skip this step (every "
             "rank will), or find the batch or layer that caused it (torch.autograd.detect_anomaly).");
}

void scale_to(double max_norm, const at::Tensor& norm, const std::vector<at::Tensor>& gradients) {
  const at::Tensor scale = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  for (const auto& group : alike(gradients)) {
    // Never narrower than fp32, or the scale itself would be rounded to 8 bits of mantissa.
    const at::ScalarType dtype = c10::toRealValueType(group[0].scalar_type());
    const at::ScalarType wide = c10::elementSize(dtype) < 4 ? at::kFloat : dtype;
    at::_foreach_mul_(group, moved(scale, group[0].device()).to(wide));
  }
}

}  // namespace osdp::runtime
