// TransferPlan: describes how a unit's collective sends each tensor. It is computed once, on submission; both
// the early send and the collective follow it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/collectives.hpp"
#include "runtime/store/shard_groups.hpp"
#include "runtime/store/shard_store.hpp"

namespace osdp::runtime {

enum class SentAs : uint8_t {
  Itself,  // in place: its memory is the message
  Scaled,  // in place, after it has been scaled, see headroom_of
  Copy,    // in a copy that is cast, padded or on the device
  Packed,  // in one buffer with the other small tensors of its dtype, after the large ones
};

struct Transfer {
  Slot* slot;
  // For a gather: this rank's rows, flat. For a reduction: the full local gradient, released once it is sent.
  at::Tensor tensor;
  SentAs sent_as;
  at::Tensor target;   // for a slice's reduction: its rows of the split weight's local gradient
  bool first = false;  // which have no values yet
};

struct TransferPlan {
  std::vector<Transfer> transfers;

  // Gathers the rows of all slots of a unit.
  static TransferPlan of_gather(std::vector<Slot>& slots);
  // Add all gradients, then seal: how each is sent depends on how many there are. `total`: see
  // ShardGroups::total.
  void add(Slot& slot, at::Tensor gradient, at::Tensor target, bool first);
  void seal_reduction(int64_t total);
  // Copies large gradients into the backend's memory, on the stream that computed them, so that their own
  // memory is free again at once. See Note [Memory of the backend].
  void bring_to(const comm::Collectives& collectives, int64_t total);

  bool empty() const { return transfers.empty(); }
  // The tensors of the early send: the messages that need no copy and precede all that need one.
  comm::Tensors sent_first() const;
};

// --- within tasks of a lane

// Gathers into every slot; each must have memory attached. `second`: of groups with two levels, the tensors
// that were gathered between hosts; they are gathered if there are none. Null: they are not kept.
void gather(const ShardGroups& shard_groups, const TransferPlan& plan, comm::Tensors* second);

// This rank's rows of the means over the ranks that shard them, flat.
struct Means {
  comm::Tensors memory;  // the tensors as they were allocated
  comm::Tensors each;    // one per transfer, views of `memory`
  // With two levels: the means over this host of the rows in the same place of all hosts, flat. The mean of
  // these over the hosts is yet to be written to `memory`.
  comm::Tensors of_host;
};
Means reduce_scatter(const ShardGroups& shard_groups, TransferPlan& plan);

// Adds the means over all ranks to the gradients that this rank keeps.
void keep_means(const ShardGroups& shard_groups, const TransferPlan& plan, const comm::Tensors& means);

}  // namespace osdp::runtime
