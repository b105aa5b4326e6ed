#include "runtime/norm.hpp"

#include <ATen/Functions.h>

#include <cmath>
#include <limits>

#include "runtime/no_inference.hpp"
#include "runtime/owners.hpp"
#include "runtime/runtime.hpp"

namespace osdp::runtime {

NormTerms::NormTerms(double norm_type) : norm_type_(norm_type) {
  OSDP_CHECK(norm_type > 0, Sharding,
             "OSDP: the norm of gradients of which each rank holds a part needs a positive ",
             "norm type, got ", norm_type);
}

void NormTerms::add(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& t : tensors) {
    const double norm = t.numel() ? at::linalg_vector_norm(t, norm_type_).item<double>() : 0.0;
    if (std::isnan(norm))
      not_a_number_ = true;
    else
      sum_ = std::isinf(norm_type_) ? std::max(sum_, norm) : sum_ + std::pow(norm, norm_type_);
  }
}

void NormTerms::add(const NormTerms& other) {
  not_a_number_ |= other.not_a_number_;
  sum_ = std::isinf(norm_type_) ? std::max(sum_, other.sum_) : sum_ + other.sum_;
}

void NormTerms::reduce(Lane& lane, const TaskNamePtr& name, const std::shared_ptr<Collectives>& collectives,
                       at::Device device) {
  at::Tensor total =
      at::tensor({sum_, not_a_number_ ? 1.0 : 0.0}, at::TensorOptions().dtype(at::kDouble)).to(device);
  const bool largest = std::isinf(norm_type_);
  Ticket done = lane.submit(name, [collectives, total, largest] {
    if (largest)
      collectives->all_reduce_max(total);
    else
      collectives->all_reduce_sum(total);
  });
  done.wait();
  const at::Tensor told = total.to(at::kCPU);
  sum_ = told[0].item<double>();
  not_a_number_ = told[1].item<double>() > 0;
}

double NormTerms::norm() const {
  if (not_a_number_) return std::numeric_limits<double>::quiet_NaN();
  return std::isinf(norm_type_) ? sum_ : std::pow(sum_, 1.0 / norm_type_);
}

void check_norm(double norm, double norm_type, bool error_if_nonfinite) {
  OSDP_CHECK(!error_if_nonfinite || std::isfinite(norm), Gradient, "the norm of order ", norm_type,
             " of all gradients is ", norm,
             ", on every rank: no gradient was changed. Skip this step (every "
             "rank will), or find the batch or layer that made it (torch.autograd.detect_anomaly).");
}

std::optional<at::Tensor> norm_over_ranks(const std::vector<at::Tensor>& tensors, double norm_type,
                                          bool error_if_nonfinite) {
  const std::vector<Owner> owners = owners_of(tensors);
  bool all_here = true;
  for (const Owner& owner : owners)
    all_here &= !owner.runtime || owner.runtime->parameter(owner.param).whole();
  if (all_here) return std::nullopt;
  NoInference no_inference;
  at::NoGradGuard no_grad;
  NormTerms terms(norm_type);
  std::vector<at::Tensor> others;
  at::ScalarType dtype = c10::toRealValueType(tensors[0].scalar_type());
  for (size_t i = 0; i < tensors.size(); ++i) {
    dtype = c10::promoteTypes(dtype, c10::toRealValueType(tensors[i].scalar_type()));
    const Owner& owner = owners[i];
    // A whole parameter is the same on every rank, and counts as it does in one process.
    if (!owner.runtime || owner.runtime->parameter(owner.param).whole()) others.push_back(tensors[i]);
  }
  terms.add(others);
  for (const auto& runtime : live_runtimes()) {
    std::vector<at::Tensor> counted;
    int64_t cut = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (owners[i].runtime != runtime || runtime->parameter(owners[i].param).whole()) continue;
      ++cut;
      for (at::Tensor& piece : runtime->counted_pieces(owners[i].param, tensors[i]))
        counted.push_back(std::move(piece));
    }
    if (cut == 0) continue;
    NormTerms of_model(norm_type);
    of_model.add(counted);
    runtime->reduce_norm(of_model, "get_total_norm", c10::str("of ", cut, " tensors, norm_type ", norm_type));
    terms.add(of_model);
  }
  const double norm = terms.norm();
  check_norm(norm, norm_type, error_if_nonfinite);
  return at::full({}, norm, at::TensorOptions().dtype(dtype).device(tensors[0].device()));
}

}  // namespace osdp::runtime
