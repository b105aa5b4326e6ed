// What happens when gradients flow.
#include <ATen/core/grad_mode.h>

#include <exception>
#include <utility>

#include "runtime/runtime.hpp"
#include "runtime/step/autograd_hooks.hpp"
#include "runtime/step/graph_task.hpp"
#include "runtime/step/no_inference.hpp"

namespace osdp::runtime {

// Note [A backward]
// It begins with the first hook that fires (an output of a call, usually the model's; or a gradient), takes
// all parameters unsharded, and ends in a callback of the graph task. Re-entrant backwards (reentrant
// checkpoints) run within it and end with it. Each unit is gathered when its call's outputs get their first
// gradient, reduced and released when the last of the gradients that this graph task makes for it is there. A
// gradient counts as made when its AccumulateGrad node runs, once per graph task: parameters used in several
// calls need no counting of their own.

void Runtime::begin_backward() {
  if (backward_) return;
  backward_end_ = at_end_of_graph_task(*this);  // first: from here on an exception puts everything back
  backward_ = true;
  backward_order_.begin();
  for (const auto& unit : units_) show_unsharded({unit.get()});
  show_unsharded(copies_, false);
}

// Note [Backward of a backward]
// With create_graph=True (a gradient penalty, a Hessian-vector product) the nodes of the new graph read the
// parameters again in the next backward, and no module's output leads there. So what such a backward has
// gathered stays gathered, until the end of the next one that makes no graph. What it cannot give is a
// gradient of a parameter that is itself differentiable: the mean over ranks has no graph. That is refused.

// Note [Gradients that are asked for]
// torch.autograd.grad(loss, parameters) hands out what autograd has made: this rank's own gradients, full and
// not averaged. In one process they would be those of the whole batch, so it is refused; within no_sync,
// where own gradients are what one asks for, it is not.
void Runtime::check_asked() {
  const int task = current_graph_task();
  if (std::exchange(asked_task_, task) == task) return;
  for (const auto& p : params_) {
    const bool own = alone() || !sync_;
    if (own && !p->split()) continue;
    OSDP_CHECK(!is_captured(p->accumulator.get()), Sharding, "OSDP: rank ", rank(),
               ": torch.autograd.grad asks for the gradient of parameter '", p->name(), "', ",
               p->split() ? "which is computed in slices and never has one in full. "
                          : "which would be this rank's own: no average over the ranks, as backward makes. ",
               "Use loss.backward() and the parameter's .grad",
               p->split() ? ", or granularity 1 for it in the plan."
                          : "; or call it inside osdp.no_sync(model) if this rank's own full gradient is "
                            "what you want.");
  }
}

void Runtime::begin_call_backward(const Call& call, Invocation* invocation) {
  NoInference no_inference;
  begin_backward();
  check_asked();
  const bool again = at::GradMode::is_enabled();
  creates_graph_ |= again;
  lane_->health().at(call.in_backward);
  backward_range_.begin(call.module, "backward");
  const bool reads = invocation && std::exchange(invocation->backward, backward_count_) != backward_count_;
  for (Unit* unit : call.units) {
    unit->in_backward = true;
    unit->readers += reads;
    unit->again |= again;
    use(*unit);
  }
}

void Runtime::end_call_backward(const Call& call, Invocation& invocation) {
  if (!backward_ || std::exchange(invocation.backward, -1) != backward_count_) return;
  for (Unit* unit : call.units) {
    --unit->readers;
    reshard_after_backward(*unit);
  }
}

// Its calls under way have read it for the last time, and all gradients that this graph task makes for it are
// there.
void Runtime::reshard_after_backward(Unit& unit) {
  const bool gradients_to_come = unit.task == current_graph_task() && unit.arrived < unit.expected;
  if (unit.readers > 0 || unit.running > 0 || gradients_to_come) return;
  if (unit.again || unit.recomputed) return;  // to the end of this backward, or longer
  unit.in_backward = false;
  reshard(unit);
}

void Runtime::before_gradient(Parameter& param) {
  NoInference no_inference;
  begin_backward();
  param.hide_hooks();
  if (BucketItem* item = place_of(param).bucket) buckets_.await(*item);
}

// Note [Gradients that share memory]
// A reduction works in the gradient's own memory. AccumulateGrad takes a gradient over without a copy when no
// other tensor is it, but another may be a view of it: where two parameters are viewed and added, the
// gradients of both are one memory. So its owners are counted. Ours are .grad, what autograd passed in
// (`made`), and the tensor that this is a view of; one more is somebody else's.
static at::Tensor unshared(at::Tensor gradient, const at::Tensor& made) {
  if (gradient.layout() != at::kStrided) return gradient;
  const size_t ours = 2 + (made.defined() && made.is_view());
  return gradient.storage().use_count() > ours ? gradient.clone() : gradient;
}

// `made`: by autograd, undefined for a split weight, whose slices have sent theirs.
static void check_gradient(const Parameter& param, const at::Tensor& made) {
  if (!made.defined()) return;
  OSDP_CHECK(!made.requires_grad(), Sharding,
             "OSDP: backward(create_graph=True) asks for a gradient of parameter '", param.name(),
             "' that can be differentiated; the mean over the ranks cannot. Take the first gradient "
             "by torch.autograd.grad(output, input, create_graph=True), of an input or activation.");
  OSDP_CHECK(
      !param.split(), Sharding, "OSDP: parameter '", param.name(),
      "' is computed in slices, and was used in the loss by itself (a penalty on the weights?). Use the "
      "optimizer's weight_decay, or granularity 1 for it in the plan.");
}

void Runtime::after_gradient(Parameter& param, const at::Tensor& made) {
  NoInference no_inference;
  at::NoGradGuard no_grad;
  param.show_hooks();
  check_gradient(param, made);
  Place& place = place_of(param);
  if (place.copy) take_whole_gradient(param, place, made);
  if (place.bucket) {
    if (sync_)
      buckets_.arrived(*place.bucket);
    else
      place.bucket->dirty = true;
    return;
  }
  if (!place.unit) {  // one rank, or a split weight without NO_SHARD slices: its slices are on their way
    param.reduced |= alone();
    return;
  }
  Unit& unit = *place.unit;
  at::Tensor gradient = param.tensor().grad();
  param.tensor().mutable_grad().reset();
  if (gradient.defined()) add_pending(*place.slot, unshared(std::move(gradient), made));
  if (!all_arrived(unit)) return;
  reshard_after_backward(unit);
  if (sync_)
    reduce(unit);
  else
    keep_unreduced(unit);
}

// Of a NO_SHARD parameter under mixed precision: to be averaged, or added to what this rank keeps. What
// no_sync has kept is in the parameter's own dtype already; it is averaged together with what comes.
void Runtime::take_whole_gradient(Parameter& param, Place& place, const at::Tensor& made) {
  at::Tensor gradient = param.tensor().grad();
  param.tensor().mutable_grad().reset();
  if (!gradient.defined()) return;
  OSDP_CHECK(
      gradient.layout() == at::kStrided, Sharding, "OSDP: parameter '", param.name(),
      "' got a sparse gradient, which mixed precision cannot average. Use sparse=False in its module.");
  if (place.bucket && sync_ && place.bucket->averages_alone()) {
    at::Tensor& pending = place.bucket->pending;
    pending = pending.defined() ? wide_sum(pending, gradient, param.own_dtype())
                                : unshared(std::move(gradient), made);
    return;
  }
  param.reduced |= !place.bucket;
  at::Tensor& kept = param.local_grad();
  if (kept.defined())
    kept.add_(gradient);
  else
    kept = gradient.to(param.own_dtype());
}

// What no event told of: units whose gradients did not all come (backward of some inputs only), units
// prefetched or held and not used, gradients kept under no_sync of parameters that this backward did not
// reach.
void Runtime::finish_units() {
  for (const auto& unit : units_) {
    if (unit->again && !creates_graph_) unit->again = unit->keep = false;
    const bool kept = unit->again || (unit->keep && !unit->in_backward);
    if (unit->running == 0 && !kept) reshard(*unit);
    if (unit->again) unit->keep = true;
    unit->in_backward = false;
    unit->readers = 0;
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

// Note [Gradients kept under no_sync]
// They are full and not the parameter's .grad, which has the shard's shape; yet zero_grad must drop them. So
// the parameter gets a .grad (zeros, if it had none) that stands for them, and its state is noted: when it is
// gone, or was zeroed, by the time the parameter goes unsharded again, what was kept is dropped too. Any
// other change in between would have to be made to the kept gradients as well, and is refused.
void Runtime::note_unsynced() {
  for (const auto& unit : units_)
    for (Slot& slot : unit->slots)
      if (slot.unsynced.defined()) slot.owner().note_gradient();
}

void Runtime::finish_backward() {
  NoInference no_inference;
  at::NoGradGuard no_grad;
  backward_range_.end();
  finish_units();
  const bool averaged = !reductions_.empty() || buckets_.launched();
  for (const Work& work : reductions_) work.wait();
  reductions_.clear();
  leaving_.clear();
  if (hybrid_reducer_) hybrid_reducer_->wait_all();
  buckets_.wait_all();
  await_host_memory();
  backward_order_.end();
  note_unsynced();
  kept_unreduced_ = !sync_;
  if (averaged) {
    set_accumulates(true);
    compares_replicas_ = true;
  }
  if (stack_.empty()) check_written();
  backward_ = creates_graph_ = false;
  ++backward_count_;
  tell_place();
  if (stack_.empty()) {
    show_sharded();
    drop_copies();
    note_writes();
  }
  check_replicas();
  if (stack_.empty()) call_hooks();
}

// See Note [Hooks after accumulation]. The last first, which is about the order of one process.
void Runtime::call_hooks() {
  for (size_t i = params_.size(); i-- > 0;)
    if (std::exchange(params_[i]->reduced, false)) params_[i]->call_hooks();
}

Parameter* Runtime::unreduced() {
  if (!kept_unreduced_) return nullptr;
  for (const auto& unit : units_)
    for (Slot& slot : unit->slots)
      if (slot.unsynced.defined() && !slot.owner().gradient_dropped()) return &slot.owner();
  return buckets_.unreduced();
}

void Runtime::check_replicas() {
  replicas_.check(rank());
  column_replicas_.check(rank());
}

void Runtime::await_backward() {
  if (!backward_end_ || current_graph_task() != -1) return;
  const std::shared_ptr<BackwardEnd> end = std::exchange(backward_end_, nullptr);
  end->await();
}

void Runtime::abort() noexcept {
  try {
    NoInference no_inference;
    at::NoGradGuard no_grad;
    for (const Work& work : reductions_) {
      try {
        work.wait();
      } catch (const std::exception&) {  // what broke the lane is the exception under way, or follows from it
      }
    }
    reductions_.clear();
    leaving_.clear();
    if (hybrid_reducer_) hybrid_reducer_->forget();
    backward_range_.end();
    replicas_.forget();
    column_replicas_.forget();
    buckets_.forget();
    for (const auto& p : params_) {
      p->show_hooks();
      p->reduced = false;
    }
    for (const auto& unit : units_) {
      reshard(*unit);
      unit->in_backward = false;
      unit->readers = 0;
      unit->task = -1;
      for (Slot& slot : unit->slots) slot.pending.reset();
    }
    await_host_memory();
    backward_ = creates_graph_ = false;
    ++backward_count_;
    tell_place();
    if (stack_.empty()) {
      show_sharded();
      drop_copies();
    }
    tell_raised();
  } catch (const std::exception& e) {
    TORCH_WARN("OSDP: the model could not be put back after an exception: ", e.what());
  }
}

}  // namespace osdp::runtime
