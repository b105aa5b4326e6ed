// Shards in host memory: the copies to and from the device that computes.
#pragma once

#include "comm/lane.hpp"
#include "runtime/store/shard_store.hpp"

namespace osdp::runtime {

// Note [Shards in host memory]
// A parameter that is `away` rests in host memory (pinned, if the device is an accelerator): its rows, their
// gradient, and the optimizer's state for them. Before a gather the lane copies the rows to the device; after
// a reduction it adds the gradient that was kept and copies the sum back. Both copies run on the lane's
// stream without blocking the host. So before the host reads a gradient (at the end of a backward) or may
// write rows (also at the end of a forward), the host itself waits for the lanes. Parameters that are not
// sharded, and a weight of whose slices some are not, stay on the device. Of a weight in slices each slice
// brings its own rows, and adds its own gradient.

// `home` on the device that computes: a copy made on the current stream, with the lifetime of a task's
// memory; or `home` itself if the parameter is not offloaded.
inline at::Tensor brought(const Parameter& p, const at::Tensor& home) {
  if (!p.away() || !home.defined()) return home;
  at::Tensor there = comm::Lane::empty(home.sizes(), home.options().device(p.device()).pinned_memory(false));
  return there.copy_(home, /*non_blocking=*/true);
}

// Stores `value` (local shape, on the device) in `home`, which may be undefined.
inline void send_home(const Parameter& p, const at::Tensor& value, at::Tensor& home) {
  if (!p.away()) {
    home = value;
    return;
  }
  if (!home.defined()) home = at::empty(value.sizes(), p.home_options());
  home.copy_(value, /*non_blocking=*/true);
}

}  // namespace osdp::runtime
