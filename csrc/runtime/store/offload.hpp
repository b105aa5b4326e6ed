// Shards in host memory: the copies to and from the device that computes.
#pragma once

#include "comm/lane.hpp"
#include "runtime/store/shard_store.hpp"

namespace osdp::runtime {

// Note [Shards in host memory]
// A parameter that is `away` rests in host memory (pinned, where the device is an accelerator): its rows,
// their gradient, and what an optimizer makes beside them. For a gather the lane first copies the rows to the
// device; after a reduction it copies the gradient back, having added what was there. Both are tasks of the
// lane's stream and do not stop the host, so before the host reads a gradient (the end of a backward) or may
// write rows (the end of a forward, too) the lane is waited for, host and all. Parameters that are not
// sharded, and slices, stay on the device.

// What lies at home, on the parameter's device: a copy that the current stream makes, kept as long as a
// task's memory is.
inline at::Tensor brought(const Parameter& p, const at::Tensor& home) {
  if (!p.away() || !home.defined()) return home;
  at::Tensor there = Lane::empty(home.sizes(), home.options().device(p.device()).pinned_memory(false));
  return there.copy_(home, /*non_blocking=*/true);
}

// Puts `value`, of the local shape and on the device, into `home`, which may be undefined.
inline void send_home(const Parameter& p, const at::Tensor& value, at::Tensor& home) {
  if (!p.away()) {
    home = value;
    return;
  }
  if (!home.defined()) home = at::empty(value.sizes(), p.home_options());
  home.copy_(value, /*non_blocking=*/true);
}

}  // namespace osdp::runtime
