#include "runtime/step/transfer_plan.hpp"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "comm/arithmetic.hpp"
#include "comm/packing.hpp"
#include "runtime/store/offload.hpp"
#include "runtime/store/precision.hpp"

namespace osdp::runtime {
namespace {

int64_t chunk_elements(const Slot& slot) { return slot.range().chunk * slot.range().row_elements; }

// Whether these rows can be sent in place.
bool is_chunk(const at::Tensor& rows, const Slot& slot) {
  return rows.numel() == chunk_elements(slot) && rows.scalar_type() == slot.padded().scalar_type();
}

// Copies `tensor`, cast and scaled, into the first elements of the flat `padded`, and zeros the others.
void pad_into(comm::Batch& batch, const at::Tensor& padded, const at::Tensor& tensor, double factor = 1.0) {
  const int64_t n = tensor.numel(), more = padded.numel() - n;
  if (n > 0) batch.set(more > 0 ? padded.narrow(0, 0, n) : padded, tensor, factor);
  if (more > 0) batch.zero(padded.narrow(0, n, more));
}

// Copies this rank's rows into `chunk`, cast to the compute dtype and padded to a whole chunk (the last ranks
// have fewer rows).
void fill(comm::Batch& batch, const at::Tensor& chunk, const Transfer& t) {
  const bool cast = t.tensor.scalar_type() != chunk.scalar_type();
  pad_into(batch, chunk, cast ? brought(t.slot->owner(), t.tensor) : t.tensor);
}

// Whether it is sent in one buffer with the other small ones of `together` tensors.
bool is_packed(const Slot& slot, size_t together) {
  return together > 1 && slot.bytes() <= comm::kSmallBytes;
}

// Whether a gradient can be sent in place, up to scaling.
bool is_padded(const Transfer& t) {
  return t.tensor.is_contiguous() && t.tensor.scalar_type() == t.slot->owner().reduce_dtype() &&
         t.tensor.numel() == t.slot->padded().numel();
}

// A gradient as a matrix of the rows that are sharded.
at::Tensor rows_of(const Transfer& t) {
  const RowRange& range = t.slot->range();
  return t.tensor.reshape({range.rows, range.row_elements});
}

}  // namespace

TransferPlan TransferPlan::of_gather(std::vector<Slot>& slots) {
  TransferPlan plan;
  plan.transfers.reserve(slots.size());
  for (Slot& slot : slots) {
    at::Tensor rows = slot.rows_of(slot.owner().local());
    const SentAs sent_as = is_packed(slot, slots.size())                  ? SentAs::Packed
                           : !slot.owner().away() && is_chunk(rows, slot) ? SentAs::Itself
                                                                          : SentAs::Copy;
    plan.transfers.push_back({&slot, std::move(rows), sent_as, {}});
  }
  return plan;
}

void TransferPlan::add(Slot& slot, at::Tensor gradient, at::Tensor target, bool first) {
  transfers.push_back({&slot, std::move(gradient), SentAs::Copy, std::move(target), first});
}

void TransferPlan::seal_reduction(int64_t total) {
  for (Transfer& t : transfers) {
    if (is_packed(*t.slot, transfers.size()))
      t.sent_as = SentAs::Packed;
    else if (is_padded(t))
      t.sent_as = headroom_of(t.slot->owner().reduce_dtype(), total) == 1.0 ? SentAs::Itself : SentAs::Scaled;
  }
}

void TransferPlan::bring_to(const comm::Collectives& collectives, int64_t total) {
  const at::NoGradGuard no_grad;
  comm::Batch batch;
  for (Transfer& t : transfers) {
    if (t.slot->bytes() <= comm::kSmallBytes) continue;
    const auto options = t.tensor.options().dtype(t.slot->owner().reduce_dtype());
    const at::Tensor there = collectives.empty(t.slot->padded().numel(), options);
    pad_into(batch, there, t.tensor);
    t.tensor = there;
  }
  batch.run();
  seal_reduction(total);
}

comm::Tensors TransferPlan::sent_first() const {
  comm::Tensors first;
  for (const Transfer& t : transfers) {
    if (t.sent_as == SentAs::Packed) continue;
    if (t.sent_as != SentAs::Itself) break;
    first.push_back(t.tensor.dim() == 1 ? t.tensor : t.tensor.view({-1}));
  }
  return first;
}

void gather(const ShardGroups& shard_groups, const TransferPlan& plan, comm::Tensors* second) {
  const std::vector<Transfer>& transfers = plan.transfers;
  const int64_t world = shard_groups.world(), rank = shard_groups.rank();
  const bool from_second = second && !second->empty();  // this rank's rows are in there, too
  comm::Tensors outputs, inputs;
  std::vector<comm::ChunkPack> packs;
  comm::Batch batch;
  // An input that cannot be sent in place is built at this rank's position in the output.
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    const at::Tensor& full = t.slot->padded();
    if (t.sent_as == SentAs::Packed) {
      comm::ChunkPack::put(packs, full.scalar_type(), i, chunk_elements(*t.slot));
      continue;
    }
    outputs.push_back(full);
    if (from_second) continue;
    if (t.sent_as == SentAs::Itself) {
      inputs.push_back(t.tensor);
    } else {
      const int64_t elements = chunk_elements(*t.slot);
      inputs.push_back(full.narrow(0, rank * elements, elements));
      fill(batch, inputs.back(), t);
    }
  }
  comm::Tensors packed;  // [ranks, width] of each pack
  for (const comm::ChunkPack& pack : packs) {
    packed.push_back(at::empty({world, pack.width}, transfers[pack.members[0]].slot->padded().options()));
    outputs.push_back(packed.back().view({-1}));
    if (from_second) continue;
    inputs.push_back(packed.back().select(0, rank));
    const comm::FlatPack chunks(inputs.back(), pack.widths);
    for (size_t i = 0; i < pack.members.size(); ++i) fill(batch, chunks.parts[i], transfers[pack.members[i]]);
  }
  batch.run();
  if (second) {
    if (!from_second) *second = shard_groups.levels->gather_between(inputs);
    shard_groups.levels->gather_inside(outputs, *second);
  } else {
    shard_groups.shard->all_gather(outputs, inputs);
  }
  for (size_t p = 0; p < packs.size(); ++p) {
    comm::Tensors columns;
    for (size_t i : packs[p].members) columns.push_back(transfers[i].slot->padded().view({world, -1}));
    comm::split_columns(columns, packed[p]);
  }
}

// Full gradients are sent in the reduce dtype, flat, padded to `world` chunks, and scaled by headroom_of.
Means reduce_scatter(const ShardGroups& shard_groups, TransferPlan& plan) {
  std::vector<Transfer>& transfers = plan.transfers;
  const int64_t world = shard_groups.world();
  comm::Tensors outputs(transfers.size()), sent_outputs, sent_inputs;
  std::vector<comm::ChunkPack> packs;
  comm::Batch batch;
  for (size_t i = 0; i < transfers.size(); ++i) {
    Transfer& t = transfers[i];
    const at::ScalarType dtype = t.slot->owner().reduce_dtype();
    if (t.sent_as == SentAs::Packed) {
      comm::ChunkPack::put(packs, dtype, i, chunk_elements(*t.slot));
      continue;
    }
    const double headroom = headroom_of(dtype, shard_groups.total());
    const auto options = t.tensor.options().dtype(dtype);
    if (t.sent_as != SentAs::Copy) {
      sent_inputs.push_back(t.tensor.view({-1}));
      batch.scale(sent_inputs.back(), headroom);
    } else {
      sent_inputs.push_back(shard_groups.reduce->empty(t.slot->padded().numel(), options));
      pad_into(batch, sent_inputs.back(), t.tensor, headroom);
    }
    comm::Lane::keep(std::exchange(t.tensor, at::Tensor()));
    outputs[i] = shard_groups.reduce->empty(chunk_elements(*t.slot), options);
    sent_outputs.push_back(outputs[i]);
  }
  comm::Tensors packed;  // the means of each pack, flat
  for (const comm::ChunkPack& pack : packs) {
    const auto options = transfers[pack.members[0]].tensor.options().dtype(pack.dtype);
    packed.push_back(shard_groups.reduce->empty(pack.width, options));
    sent_outputs.push_back(packed.back());
    const at::Tensor all = at::empty({world, pack.width}, options);
    comm::Tensors gradients;
    for (size_t i : pack.members) {
      gradients.push_back(rows_of(transfers[i]));
      comm::Lane::keep(std::exchange(transfers[i].tensor, at::Tensor()));
    }
    comm::join_chunks(all, gradients);
    batch.scale(all, headroom_of(pack.dtype, shard_groups.total()));
    sent_inputs.push_back(all.view({-1}));
  }
  batch.run();
  comm::Tensors of_host;
  if (const auto& levels = shard_groups.levels) {
    for (const at::Tensor& output : sent_outputs)
      of_host.push_back(shard_groups.reduce->empty(levels->hosts() * output.numel(), output.options()));
    shard_groups.reduce->reduce_scatter_mean(comm::parts_of(of_host, levels->hosts()),
                                             comm::parts_of(sent_inputs, levels->hosts()));
  } else {
    shard_groups.reduce->reduce_scatter_mean(sent_outputs, sent_inputs);
  }
  for (size_t p = 0; p < packs.size(); ++p) {
    const comm::FlatPack chunks(packed[p], packs[p].widths);
    for (size_t i = 0; i < chunks.parts.size(); ++i) outputs[packs[p].members[i]] = chunks.parts[i];
  }
  return {std::move(sent_outputs), std::move(outputs), std::move(of_host)};
}

void keep_means(const ShardGroups& shard_groups, const TransferPlan& plan, const comm::Tensors& means) {
  comm::Batch batch;
  comm::Tensors gradients(means.size());
  for (size_t i = 0; i < means.size(); ++i) {
    Slot& slot = *plan.transfers[i].slot;
    const double share = 1.0 / headroom_of(slot.owner().reduce_dtype(), shard_groups.total());
    at::Tensor mean = means[i].narrow(0, 0, slot.range().count * slot.range().row_elements);
    const Transfer& t = plan.transfers[i];
    const bool split = slot.owner().split().has_value();
    if (split && !slot.owner().away()) {
      batch.add(t.target, mean, share);
      continue;
    }
    // No lock is needed: from the first reduction of a backward to its end, only one lane accesses this
    // gradient.
    if (!split) mean = mean.view(slot.owner().local().sizes());
    at::Tensor& gradient = gradients[i];
    if (split ? !t.first : slot.owner().local_grad().defined()) {
      gradient = brought(slot.owner(), split ? t.target : slot.owner().local_grad());
      batch.add(gradient, mean, share);
    } else if (const at::ScalarType own = slot.owner().own_dtype(); mean.scalar_type() != own) {
      gradient = comm::Lane::empty(mean.sizes(), mean.options().dtype(own));
      batch.set(gradient, mean, share);
    } else {
      gradient = mean;
      batch.scale(gradient, share);
    }
  }
  batch.run();
  for (size_t i = 0; i < means.size(); ++i) {
    if (!gradients[i].defined()) continue;  // a slice that stays on the device
    Parameter& p = plan.transfers[i].slot->owner();
    at::Tensor target = plan.transfers[i].target;
    send_home(p, gradients[i], p.split() ? target : p.local_grad());
  }
}

}  // namespace osdp::runtime
