// What happens when gradients flow.
#include <ATen/core/grad_mode.h>

#include "runtime/graph_task.hpp"
#include "runtime/hooks.hpp"
#include "runtime/no_inference.hpp"
#include "runtime/runtime.hpp"

namespace osdp::runtime {

// Note [A backward]
// It begins with the first hook that fires (an output of a call, usually the model's; or a gradient), takes
// all parameters inside, and ends in a callback of the graph task. Re-entrant backwards (reentrant
// checkpoints) run within it and end with it. Each unit is gathered when its call's outputs get their first
// gradient, reduced and released when the last of the gradients that this graph task makes for it is there. A
// gradient counts as made when its AccumulateGrad node runs, once per graph task: parameters used in several
// calls need no counting of their own.

void Runtime::begin_backward() {
  if (backward_) return;
  backward_ = true;
  backward_order_.begin();
  for (const auto& unit : units_) enter({unit.get()});
  at_end_of_graph_task(*this);
}

void Runtime::begin_call_backward(const std::vector<Unit*>& units) {
  NoInference no_inference;
  begin_backward();
  for (Unit* unit : units) {
    unit->in_backward = true;
    use(*unit);
  }
}

// A unit with frozen parameters is read until the gradient of its call's inputs is made; its own gradients,
// if it has any, may all be there before.
void Runtime::inputs_done(const std::vector<Unit*>& units) {
  if (!backward_) return;
  for (Unit* unit : units) {
    if (!unit->frozen_part() || unit->running > 0) continue;
    const bool waits = unit->task == current_graph_task() && unit->arrived < unit->expected;
    if (waits) continue;
    unit->in_backward = false;
    release(*unit);
  }
}

void Runtime::before_gradient(Parameter& param) {
  NoInference no_inference;
  begin_backward();
  if (BucketItem* item = place_of(param).bucket) buckets_.await(*item);
}

void Runtime::after_gradient(Parameter& param) {
  NoInference no_inference;
  at::NoGradGuard no_grad;
  Place& place = place_of(param);
  if (place.bucket) {
    if (sync_)
      buckets_.arrived(*place.bucket);
    else
      place.bucket->dirty = true;
    return;
  }
  if (!place.unit)
    return;  // one rank, or a split weight without NO_SHARD slices: its slices are on their way
  Unit& unit = *place.unit;
  at::Tensor gradient = param.tensor().grad();
  param.tensor().mutable_grad().reset();
  if (gradient.defined()) add_pending(*place.slot, std::move(gradient));
  if (!all_arrived(unit)) return;
  const bool still_read = unit.frozen_part() && unit.in_backward;
  if (!still_read && unit.running == 0) {
    unit.in_backward = false;
    release(unit);
  }
  if (sync_)
    reduce(unit);
  else
    keep_unreduced(unit);
}

// What no event told of: units whose gradients did not all come (backward of some inputs only), units
// prefetched or held and not used, gradients kept under no_sync of parameters that this backward did not
// reach.
void Runtime::finish_units() {
  for (Unit* unit : touched_)
    if (unit->running == 0 && (unit->in_backward || !unit->keep)) release(*unit);
  for (const auto& unit : units_) {
    unit->in_backward = false;
    if (sync_) {
      for (Slot& slot : unit->slots)
        if (!slot.pending.defined()) slot.pending = std::move(slot.unsynced), slot.unsynced = at::Tensor();
      reduce(*unit);
    } else {
      keep_unreduced(*unit);
    }
  }
  if (sync_) buckets_.flush();
}

void Runtime::finish_backward() {
  NoInference no_inference;
  at::NoGradGuard no_grad;
  finish_units();
  for (const Ticket& ticket : reductions_) ticket.wait();
  reductions_.clear();
  buckets_.wait_all();
  backward_order_.end();
  backward_ = false;
  if (stack_.empty()) leave();
}

void Runtime::abort() noexcept {
  try {
    NoInference no_inference;
    at::NoGradGuard no_grad;
    for (const Ticket& ticket : reductions_) {
      try {
        ticket.wait();
      } catch (const std::exception&) {  // what broke the lane is the exception under way, or follows from it
      }
    }
    reductions_.clear();
    buckets_.forget();
    for (const auto& unit : units_) {
      release(*unit);
      unit->in_backward = false;
      unit->task = -1;
      for (Slot& slot : unit->slots) slot.pending.reset();
    }
    backward_ = false;
    if (stack_.empty()) leave();
  } catch (const std::exception& e) {
    TORCH_WARN("OSDP: the model could not be put back after an exception: ", e.what());
  }
}

}  // namespace osdp::runtime
