// TransferPlan: what a collective of a unit sends, as a value. It is computed once, when the collective is
// submitted; its early send and the collective itself both follow it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/collectives.hpp"
#include "runtime/store/shard_groups.hpp"
#include "runtime/store/shard_store.hpp"

namespace osdp::runtime {

enum class SentAs : uint8_t {
  Itself,  // its memory is the message
  Scaled,  // so it is once it has been multiplied in place, see headroom_of
  Copy,    // cast, padded or brought to the device
  Packed,  // with the other small ones of its dtype, behind those that are not
};

struct Transfer {
  Slot* slot;
  // Of a gather this rank's rows, flat. Of a reduction the full local gradient; let go of when it is sent.
  at::Tensor tensor;
  SentAs sent_as;
  at::Tensor target;  // of a slice's reduction: its rows of the split weight's local gradient
};

struct TransferPlan {
  std::vector<Transfer> transfers;

  // `slots`: of a unit, whose rows all travel.
  static TransferPlan of_gather(std::vector<Slot>& slots);
  // Gradients are added, then sealed: how each travels depends on how many there are. `total`: see
  // ShardGroups::total.
  void add(Slot& slot, at::Tensor gradient, at::Tensor target);
  void seal_reduction(int64_t total);
  // Large gradients are copied into the backend's memory, by the stream that made them: so their own memory
  // is free again at once. See Note [Memory of the backend].
  void bring_to(const Collectives& collectives, int64_t total);

  bool empty() const { return transfers.empty(); }
  // What the collective sends before the first message that it must make: its early send.
  Tensors sent_first() const;
};

// --- within tasks of a lane

// Fills every slot, which has memory to gather into.
void gather(Collectives& collectives, const TransferPlan& plan);

// Means over the ranks that share, this rank's rows, flat.
struct Means {
  Tensors memory;  // all of it, as it was made
  Tensors each;    // one per transfer, parts of it
};
Means reduce_scatter(const ShardGroups& shard_groups, TransferPlan& plan);

// Adds the means over all ranks to the gradients that this rank keeps.
void keep_means(const ShardGroups& shard_groups, const TransferPlan& plan, const Tensors& means);

}  // namespace osdp::runtime
