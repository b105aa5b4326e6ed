#include "runtime/step/full_params.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/step/no_inference.hpp"
#include "runtime/store/offload.hpp"

namespace osdp::runtime {
namespace {

// Gathers the rows of all ranks into one tensor of `full_rows` rows. The ranks' pieces are offset along `dim`
// only.
at::Tensor gathered_rows(comm::Collectives& collectives, const at::Tensor& rows, int64_t dim,
                         int64_t full_rows) {
  const int64_t world = collectives.world();
  const int64_t chunk = (full_rows + world - 1) / world;
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[dim] = chunk;
  at::Tensor padded = comm::Lane::empty(sizes, rows.options()).zero_();
  padded.narrow(dim, 0, rows.size(dim)).copy_(rows);
  sizes[dim] = chunk * world;
  at::Tensor all = comm::Lane::empty(sizes, rows.options());
  collectives.all_gather({all.view({-1})}, {padded.view({-1})});
  return all.narrow(dim, 0, full_rows);
}

}  // namespace

at::Tensor FullParams::gather(int64_t index, const at::Tensor& local, const char* what) const {
  NoInference no_inference;
  at::NoGradGuard no_grad;
  const Parameter& p = shards_.parameter(index);
  OSDP_CHECK(!in_pass(), Sharding, "OSDP: full parameters were requested inside a forward or backward ('",
             p.name(), "'); request them between steps.");
  if (p.whole()) return local.detach().clone();
  OSDP_CHECK(local.sizes() == at::IntArrayRef(p.local_sizes()), Sharding, "OSDP: ", local.sizes(),
             " was given as this rank's part of '", p.name(), "', which is ",
             at::IntArrayRef(p.local_sizes()));
  at::Tensor full = at::empty(p.full_sizes(), local.options());
  const ShardGroups& shard_groups = *shards_.place_of(p).shard_groups;
  at::Tensor here = brought(p, local);
  const faults::TaskNamePtr name = faults::task_name(p.name() + " all-gather (" + what + ")", model_);
  comm::Work done = lane_->submit(name, [&shard_groups, &p, here, full] {
    for (size_t i = 0; i < p.pieces().size(); ++i) {
      const Piece& piece = p.pieces()[i];
      at::Tensor rows = here.narrow(piece.local_dim, piece.local_begin, piece.local_count);
      const int64_t full_rows = p.split()
                                    ? slice_sizes(p.full_sizes(), *p.split(), static_cast<int64_t>(i))[0]
                                    : p.full_sizes()[piece.local_dim];
      std::vector<int64_t> offsets = piece.offsets;
      if (!piece.replicated) {
        const RowRange range(std::vector<int64_t>{full_rows}, 0, shard_groups.rank(), shard_groups.world());
        offsets[piece.local_dim] -= range.begin;
        rows = gathered_rows(*shard_groups.shard, rows, piece.local_dim, full_rows);
      }
      at::Tensor into = full;
      for (int64_t d = 0; d < rows.dim(); ++d) into = into.narrow(d, offsets[d], rows.size(d));
      into.copy_(rows);
    }
  });
  done.wait();
  return full;
}

const Parameter* FullParams::owner_of(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return nullptr;
  for (const auto& p : shards_.params())
    if (!p->absent() && p->tensor().storage().is_alias_of(tensor.storage())) return p.get();
  return nullptr;
}

bool FullParams::shows_any() const {
  return std::any_of(aside_.begin(), aside_.end(), [](const Aside& a) { return a.local.defined(); });
}

void FullParams::summon(bool with_grads) {
  OSDP_CHECK(!summoned_, Sharding, "OSDP: summon_full_params is already active for this model");
  std::vector<int64_t> all(shards_.params().size());
  std::iota(all.begin(), all.end(), 0);
  summoned_params_ = show_full(all, with_grads, /*keep=*/false);
  summoned_ = true;
}

void FullParams::unsummon(bool writeback) {
  OSDP_CHECK(summoned_, Sharding, "OSDP: summon_full_params is not active for this model");
  while (!lent_.empty()) take_back(*lent_.back().call);  // a call that an exception has left
  summoned_ = false;
  show_local(std::exchange(summoned_params_, {}), writeback);
}

// Note [Forwards of what is summoned]
// Scripts evaluate or generate inside summon_full_params, often on one rank alone. So such a call
// communicates nothing: it computes with the full values that are there. What a call would gather in another
// dtype or on another device is shown so until its end. A graph would outlive the values, so gradients are
// refused.
void FullParams::lend(const Call& call) {
  OSDP_CHECK(
      !at::GradMode::is_enabled(), Sharding,
      "OSDP: ", call.module.empty() ? "the model" : "'" + call.module + "'",
      " was called with gradients inside summon_full_params; leave that context before the forward, or "
      "call it under torch.no_grad().");
  at::NoGradGuard no_grad;
  Lent& lent = lent_.emplace_back(Lent{&call, {}});
  const auto cast = [&](Parameter& p) {
    const at::Tensor full = p.tensor().variable_data();
    if (p.split() || p.absent()) return;
    if (full.scalar_type() == p.compute_dtype() && full.device() == p.device()) return;
    p.show(full.to(full.options().dtype(p.compute_dtype()).device(p.device())));
    lent.casts.emplace_back(&p, full);
  };
  for (Unit* unit : call.units)
    for (Slot& slot : unit->slots) cast(slot.owner());
  if (call.root || call.method)
    for (const auto& copy : shards_.copies()) cast(copy->owner());
  else
    for (WholeCopy* copy : call.copies) cast(copy->owner());
}

bool FullParams::take_back(const Call& call) {
  const auto lent_to = [&](const Lent& lent) { return lent.call == &call; };
  if (std::none_of(lent_.begin(), lent_.end(), lent_to)) return false;
  NoInference no_inference;
  for (bool last = false; !last;) {  // calls inside of it that an exception has left end with it
    last = lent_to(lent_.back());
    for (auto& [param, full] : lent_.back().casts) param->show(full);
    lent_.pop_back();
  }
  return true;
}

at::Tensor FullParams::slice_of_summoned(const Parameter& p, int64_t slice) const {
  const at::Tensor full = p.tensor().variable_data();
  const int64_t dim = p.split()->dim == ops::SplitDim::Out ? 0 : 1;
  return full
      .narrow(dim, slice_begin(full.size(dim), p.split()->granularity, slice),
              slice_sizes(full.sizes(), *p.split(), slice)[dim])
      .to(full.options().dtype(p.compute_dtype()).device(p.device()))
      .contiguous();
}

std::vector<int64_t> FullParams::show_full(const std::vector<int64_t>& params, bool with_grads, bool keep) {
  aside_.resize(shards_.params().size());
  std::vector<int64_t> shown;
  try {
    for (const int64_t i : params) {
      Parameter& p = shards_.parameter(i);
      Aside& aside = aside_[i];
      if (p.whole() || p.absent() || aside.local.defined()) continue;
      const at::Tensor local = p.local(), local_grad = p.tensor().grad();
      const at::Tensor full = gather(i, local);
      // Whether a gradient exists is the same on every rank.
      const at::Tensor grad =
          with_grads && local_grad.defined() ? gather(i, local_grad, "whole gradient") : at::Tensor();
      aside = {local, local_grad, at::Tensor(), keep};
      shown.push_back(i);
      p.tensor().mutable_grad().reset();
      p.show(full);
      p.tensor().mutable_grad() = grad;
    }
  } catch (...) {
    show_local(shown, /*writeback=*/false);
    throw;
  }
  return shown;
}

void FullParams::show_local(const std::vector<int64_t>& params, bool writeback) {
  NoInference no_inference;
  at::NoGradGuard no_grad;
  std::string reshaped;
  for (const int64_t i : params) {
    Parameter& p = shards_.parameter(i);
    const Aside aside = std::exchange(aside_[i], {});
    // Hidden still, if a forward could not end.
    at::Tensor full = aside.hidden.defined() ? aside.hidden : p.tensor().variable_data();
    at::Tensor grad = p.tensor().grad();
    p.tensor().mutable_grad().reset();
    p.show(aside.local);
    if (writeback && full.sizes() != p.full_sizes()) {
      reshaped = p.name();
    } else if (writeback) {
      aside.local.copy_(p.take_local(full));
      if (grad.defined() && aside.grad.defined()) aside.grad.copy_(p.take_local(grad));
    }
    p.tensor().mutable_grad() = aside.grad;
  }
  OSDP_CHECK(
      reshaped.empty(), Sharding, "OSDP: parameter '", reshaped,
      "' changed its shape while it was shown in full, and a rank's rows cannot follow: do this before "
      "fully_shard (transformers: resize_token_embeddings), or give the module a new parameter.");
}

void FullParams::hide() {
  NoInference no_inference;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < aside_.size(); ++i) {
    Aside& aside = aside_[i];
    if (!aside.local.defined()) continue;
    Parameter& p = shards_.parameter(static_cast<int64_t>(i));
    aside.hidden = p.tensor().variable_data();
    p.show(aside.local);
    p.tensor().mutable_grad() = aside.grad;
    if (aside.keep && aside.hidden.sizes() == p.full_sizes()) aside.local.copy_(p.take_local(aside.hidden));
  }
}

void FullParams::show_hidden() {
  for (size_t i = 0; i < aside_.size(); ++i) {
    Aside& aside = aside_[i];
    if (!aside.hidden.defined()) continue;
    Parameter& p = shards_.parameter(static_cast<int64_t>(i));
    aside.grad = p.tensor().grad();
    p.tensor().mutable_grad().reset();
    p.show(std::exchange(aside.hidden, {}));
  }
}

std::vector<at::Tensor> FullParams::counted_pieces(int64_t param, const at::Tensor& local) const {
  std::vector<at::Tensor> counted;
  if (local.numel() == 0) return counted;
  const ShardGroups& groups = *shards_.place_of(shards_.parameter(param)).shard_groups;
  for (const Piece& piece : shards_.parameter(param).pieces()) {
    if (!(piece.replicated ? step_.rank == 0 : groups.counts())) continue;
    counted.push_back(local.dim() == 0 ? local
                                       : local.narrow(piece.local_dim, piece.local_begin, piece.local_count));
  }
  return counted;
}

void FullParams::check_between_steps() const {
  OSDP_CHECK(
      !in_pass(), Sharding,
      "OSDP: the norm of gradients was requested inside a forward or backward; request it between backward "
      "and the optimizer's step");
}

NormTerms FullParams::norm_terms(const std::vector<at::Tensor>& counted, double norm_type,
                                 const char* function, std::string details) const {
  check_between_steps();
  NormTerms terms(norm_type, device_);
  terms.add(counted);
  const faults::TaskNamePtr name =
      faults::task_name(std::string(function) + " all-reduce", model_, std::move(details));
  terms.reduce(*lane_, name, collectives_);
  return terms;
}

// All gradients, and the pieces of them that this rank counts.
void FullParams::add_gradients(std::vector<at::Tensor>& gradients, std::vector<at::Tensor>& counted) const {
  check_between_steps();
  for (size_t i = 0; i < shards_.params().size(); ++i) {
    const Parameter& p = *shards_.params()[i];
    const at::Tensor grad = p.tensor().grad();
    if (p.absent() || !grad.defined() || grad.numel() == 0) continue;
    gradients.push_back(grad);
    for (at::Tensor& piece : counted_pieces(static_cast<int64_t>(i), grad))
      counted.push_back(std::move(piece));
  }
}

// Note [Norm of a mixed plan]
// Sharded pieces are disjoint over the ranks. Pieces that several ranks hold are counted by one of them:
// replicated ones by rank 0, HYBRID_SHARD's by the first rank of each column. One all-reduce of the sum of
// powers, or of the maximum, gives every rank the same norm. The host does not read it unless
// error_if_nonfinite is set.
//   A part of the model that is sharded over other ranks (an expert) is another parameter in each group of
// ranks. Each group counts its own once, and the sum over the whole model's ranks, which the groups divide,
// counts every group's: all ranks scale by the same norm, as one process that holds all experts would.
at::Tensor FullParams::clip_grad_norm(double max_norm, double norm_type, bool error_if_nonfinite,
                                      const std::vector<const FullParams*>& parts) const {
  NoInference no_inference;
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients, counted;
  add_gradients(gradients, counted);
  for (const FullParams* part : parts) part->add_gradients(gradients, counted);
  const at::Tensor norm = norm_terms(counted, norm_type, "clip_grad_norm_",
                                     c10::str("with max_norm ", max_norm, ", norm_type ", norm_type))
                              .norm(at::kDouble);
  if (error_if_nonfinite) check_finite(norm, norm_type);
  scale_to(max_norm, norm, gradients);
  return norm.to(shards_.params().empty() ? at::kFloat : shards_.params()[0]->own_dtype());
}

}  // namespace osdp::runtime
