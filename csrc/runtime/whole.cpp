// Whole parameters, outside of training steps: for state dicts, summon_full_params and clipping.
#include <ATen/Functions.h>

#include <cmath>
#include <limits>

#include "runtime/no_inference.hpp"
#include "runtime/offload.hpp"
#include "runtime/runtime.hpp"

namespace osdp::runtime {
namespace {

// Puts one piece, gathered from all ranks' rows where it is sharded, into the full tensor. For a piece of
// rank r all ranks' pieces are offset along `dim` only.
at::Tensor gathered_rows(Collectives& collectives, const at::Tensor& rows, int64_t dim, int64_t full_rows) {
  const int64_t world = collectives.world();
  const int64_t chunk = (full_rows + world - 1) / world;
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[dim] = chunk;
  at::Tensor padded = at::zeros(sizes, rows.options());
  padded.narrow(dim, 0, rows.size(dim)).copy_(rows);
  sizes[dim] = chunk * world;
  at::Tensor all = at::empty(sizes, rows.options());
  collectives.all_gather({all.view({-1})}, {padded.view({-1})});
  return all.narrow(dim, 0, full_rows);
}

}  // namespace

at::Tensor Runtime::gather_whole(int64_t index, const at::Tensor& local) {
  NoInference no_inference;
  at::NoGradGuard no_grad;
  Parameter& p = *params_.at(index);
  OSDP_CHECK(stack_.empty() && !backward_, Sharding,
             "OSDP: full parameters were asked for inside a forward or backward ('", p.name(),
             "'); ask between steps.");
  if (p.whole()) return local.detach().clone();
  at::Tensor full = at::empty(p.full_sizes(), local.options());
  const Sharing& sharing = *places_[index].sharing;
  at::Tensor here = brought(p, local);
  Ticket done = lane_->submit(p.name() + " all-gather (whole)", [&sharing, &p, here, full] {
    for (const Piece& piece : p.pieces()) {
      at::Tensor rows = here.narrow(piece.local_dim, piece.local_begin, piece.local_count);
      const int64_t full_rows = p.split() ? p.slice_rows() : p.full_sizes()[piece.local_dim];
      std::vector<int64_t> offsets = piece.offsets;
      if (!piece.replicated) {
        const RowRange range(std::vector<int64_t>{full_rows}, 0, sharing.rank(), sharing.world());
        offsets[piece.local_dim] -= range.begin;
        rows = gathered_rows(*sharing.shard, rows, piece.local_dim, full_rows);
      }
      at::Tensor into = full;
      for (int64_t d = 0; d < rows.dim(); ++d) into = into.narrow(d, offsets[d], rows.size(d));
      into.copy_(rows);
    }
  });
  done.wait();
  return full;
}

void Runtime::summon(bool with_grads) {
  OSDP_CHECK(!summoned_, Sharding, "OSDP: summon_full_params is already active for this model");
  summoned_local_.assign(params_.size(), {});
  summoned_grad_.assign(params_.size(), {});
  for (size_t i = 0; i < params_.size(); ++i) {
    Parameter& p = *params_[i];
    if (p.whole()) continue;
    summoned_local_[i] = p.local();
    summoned_grad_[i] = p.tensor().grad();
    at::Tensor full = gather_whole(i, summoned_local_[i]);
    // Whether a gradient exists is the same on every rank.
    at::Tensor grad =
        with_grads && summoned_grad_[i].defined() ? gather_whole(i, summoned_grad_[i]) : at::Tensor();
    p.tensor().mutable_grad().reset();
    p.show(full);
    p.tensor().mutable_grad() = grad;
  }
  summoned_ = true;
}

void Runtime::unsummon(bool writeback) {
  OSDP_CHECK(summoned_, Sharding, "OSDP: summon_full_params is not active for this model");
  NoInference no_inference;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < params_.size(); ++i) {
    Parameter& p = *params_[i];
    if (p.whole()) continue;
    at::Tensor full = p.tensor().variable_data(), grad = p.tensor().grad();
    p.tensor().mutable_grad().reset();
    p.show(summoned_local_[i]);
    if (writeback) {
      OSDP_CHECK(full.sizes() == p.full_sizes(), Sharding, "OSDP: parameter '", p.name(),
                 "' changed its shape inside summon_full_params");
      summoned_local_[i].copy_(p.take_local(full));
      if (grad.defined() && summoned_grad_[i].defined()) summoned_grad_[i].copy_(p.take_local(grad));
    }
    p.tensor().mutable_grad() = summoned_grad_[i];
  }
  summoned_local_.clear();
  summoned_grad_.clear();
  summoned_ = false;
}

Runtime::LocalGradients Runtime::local_gradients() const {
  LocalGradients gradients;
  for (size_t i = 0; i < params_.size(); ++i) {
    const Parameter& p = *params_[i];
    const at::Tensor grad = p.tensor().grad();
    if (!grad.defined() || grad.numel() == 0) continue;
    for (const Piece& piece : p.pieces()) {
      const bool counts = piece.replicated ? rank() == 0 : places_[i].sharing->counts();
      (counts ? gradients.counted : gradients.others)
          .push_back(grad.dim() == 0 ? grad
                                     : grad.narrow(piece.local_dim, piece.local_begin, piece.local_count));
    }
  }
  return gradients;
}

// Note [Norm of a mixed plan]
// Sharded pieces are disjoint over the ranks; those that several hold are counted by one: replicated ones by
// rank 0, HYBRID_SHARD's by the first rank of each column. One all-reduce (one number) of the sum of powers,
// or of the maximum, gives every rank the same norm.
at::Tensor Runtime::clip_grad_norm(double max_norm, double norm_type, bool error_if_nonfinite) {
  NoInference no_inference;
  at::NoGradGuard no_grad;
  OSDP_CHECK(norm_type > 0, Sharding, "OSDP: clip_grad_norm_ needs a positive norm type, got ", norm_type);
  const bool largest = std::isinf(norm_type);
  const LocalGradients local = local_gradients();
  double sum = 0, not_a_number = 0;
  for (const at::Tensor& g : local.counted) {
    const double norm = g.numel() ? at::linalg_vector_norm(g, norm_type).item<double>() : 0.0;
    if (std::isnan(norm))
      not_a_number = 1;
    else
      sum = largest ? std::max(sum, norm) : sum + std::pow(norm, norm_type);
  }
  // Whether it is not a number travels beside it: a maximum may or may not be one when one of its terms is.
  at::Tensor total = at::tensor({sum, not_a_number}, at::TensorOptions().dtype(at::kDouble)).to(device_);
  Ticket done = lane_->submit("clip_grad_norm_ all-reduce", [this, total, largest] {
    if (largest)
      collectives_->all_reduce_max(total);
    else
      collectives_->all_reduce_sum(total);
  });
  done.wait();
  at::Tensor told = total.to(at::kCPU);
  double norm = told[0].item<double>();
  if (!largest) norm = std::pow(norm, 1.0 / norm_type);
  if (told[1].item<double>() > 0) norm = std::numeric_limits<double>::quiet_NaN();
  OSDP_CHECK(!error_if_nonfinite || std::isfinite(norm), Gradient, "the norm of order ", norm_type,
             " of all gradients is ", norm,
             ", on every rank: no gradient was changed. Skip this step (every "
             "rank will), or find the batch or layer that made it (torch.autograd.detect_anomaly).");
  const double scale = max_norm / (norm + 1e-6);
  // Also when it is not a number: every rank then has the same NaN, as one process would.
  if (!(scale >= 1.0)) {
    for (const auto& gradients : {local.counted, local.others})
      for (at::Tensor g : gradients) g.mul_(scale);
  }
  at::ScalarType dtype = params_.empty() ? at::kFloat : params_[0]->tensor().scalar_type();
  return at::full({}, norm, at::TensorOptions().dtype(dtype).device(device_));
}

}  // namespace osdp::runtime
