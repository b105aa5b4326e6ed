#include "runtime/step/slice_provider.hpp"

#include <ATen/core/grad_mode.h>

#include "runtime/runtime.hpp"
#include "runtime/step/graph_task.hpp"
#include "runtime/step/no_inference.hpp"

namespace osdp::runtime {

at::Tensor RuntimeSlices::acquire(int64_t index, int64_t) {
  auto runtime = runtime_.lock();
  OSDP_CHECK(runtime, Sharding, "OSDP: a split layer was called after its sharded model was destroyed");
  return runtime->acquire_slice(param_, index);
}

void RuntimeSlices::release(int64_t index) noexcept {
  if (auto runtime = runtime_.lock()) runtime->release_slice(param_, index);
}

void RuntimeSlices::put_grad(int64_t index, at::Tensor grad) {
  auto runtime = runtime_.lock();
  OSDP_CHECK(runtime, Sharding, "OSDP: a split layer's backward ran after its sharded model was destroyed");
  runtime->put_slice_gradient(param_, index, std::move(grad));
}

std::string RuntimeSlices::name() const {
  auto runtime = runtime_.lock();
  return runtime ? runtime->parameter(param_).name() : "weight";
}

// The hint `next` is not needed: slices are units of the recorded order, which also knows what follows the
// last one.
at::Tensor Runtime::acquire_slice(int64_t param, int64_t slice) {
  NoInference no_inference;
  at::NoGradGuard no_grad;
  if (!backward_ && stack_.empty() && current_graph_task() != -1) begin_backward();
  Parameter& p = *params_[param];
  const SplitSpec& split = *p.split();
  const int64_t whole = split.granularity - split.sharded;
  const int64_t rows = p.slice_rows();
  if (slice < whole) return p.local().narrow(0, slice * rows, rows).to(p.compute_dtype());
  Unit& unit = *places_[param].slices[slice - whole];
  use(unit);
  ++unit.running;
  return unit.slots[0].full();
}

void Runtime::release_slice(int64_t param, int64_t slice) noexcept {
  const SplitSpec& split = *params_[param]->split();
  const int64_t whole = split.granularity - split.sharded;
  if (slice < whole) return;
  Unit& unit = *places_[param].slices[slice - whole];
  if (unit.running > 0 && --unit.running == 0) reshard(unit);
}

// The gradient that this rank keeps of a split weight; zeros where it has none yet.
at::Tensor& Runtime::split_gradient(Parameter& param) {
  BucketItem* item = place_of(param).bucket;
  if (item && !param.local_grad().defined()) item->first = sync_;
  return param.ensure_local_grad();
}

void Runtime::put_slice_gradient(int64_t param, int64_t slice, at::Tensor gradient) {
  NoInference no_inference;
  Parameter& p = *params_[param];
  OSDP_CHECK(
      !at::GradMode::is_enabled(), Sharding, "OSDP: backward(create_graph=True) goes through parameter '",
      p.name(),
      "', which is computed in slices and cannot be differentiated twice. Give its operator granularity 1 "
      "in the plan.");
  at::NoGradGuard no_grad;
  begin_backward();
  Place& place = places_[param];
  const int64_t whole = p.split()->granularity - p.split()->sharded;
  const int64_t rows = p.slice_rows();
  if (slice < whole) {
    at::Tensor kept = split_gradient(p);
    if (BucketItem* item = place.bucket) {
      buckets_.await(*item);
      const bool alone = p.mixed() && sync_ && item->averages_alone() && !item->first;
      item->dirty = true;
      if (alone) {
        if (!item->pending.defined()) item->pending = at::zeros_like(kept.narrow(0, 0, whole * rows));
        kept = item->pending;
      }
    }
    kept.narrow(0, slice * rows, rows).add_(gradient);
    return;
  }
  // One gradient leaves while the next is made, not more: where the input needs no gradient, no slice is
  // asked for in between that would wait its turn behind the reduction. (A stream's lane waits in `reduce`.)
  if (!lane_->keeps() && !reductions_.empty()) reductions_.back().wait();
  Unit& unit = *place.slices[slice - whole];
  add_pending(unit.slots[0], std::move(gradient));
  if (sync_)
    reduce(unit);
  else
    keep_unreduced(unit);
}

}  // namespace osdp::runtime
