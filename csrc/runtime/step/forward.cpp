// What happens when a module is called.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "comm/left_out.hpp"
#include "runtime/runtime.hpp"
#include "runtime/step/autograd_hooks.hpp"
#include "runtime/step/graph_task.hpp"
#include "runtime/step/no_inference.hpp"

namespace osdp::runtime {

// Note [Sharded and unsharded]
// From the outermost call's begin to its end, and from a backward's begin to its end, sharded parameters are
// unsharded: they have their full shape, readable while gathered. Reading one that is not gathered is then an
// error, not a silently smaller matrix. Outside they are what this rank holds, with its gradient: for
// optimizers, zero_grad, clipping. A call of a submodule by itself takes only its own parameters unsharded,
// and those of the calls within it. A method takes all of them inside: what it reads without having said so
// is an error.

void Runtime::show_unsharded(const std::vector<Unit*>& units) {
  for (Unit* unit : units)
    for (Slot& slot : unit->slots) {
      Parameter& p = slot.owner();
      if (!p.shows_unsharded()) {
        p.show_unsharded(p.split() ? at::Tensor() : slot.full());
        went_unsharded(p);
      }
      if (slot.unsynced.defined() && p.gradient_dropped()) slot.unsynced.reset();
    }
}

void Runtime::show_unsharded(const std::vector<WholeCopy*>& copies, bool fresh) {
  Tensors casts, own;
  for (WholeCopy* copy : copies)
    if (copy->cast(fresh)) casts.push_back(copy->shown()), own.push_back(copy->owner().local());
  if (!casts.empty()) at::_foreach_copy_(casts, own);
  for (WholeCopy* copy : copies) {
    if (copy->owner().shows_unsharded()) continue;
    copy->owner().show_unsharded(copy->shown());
    went_unsharded(copy->owner());
  }
}

void Runtime::show_unsharded(const Call& call) {
  show_unsharded(call.units);
  show_unsharded(call.slices);
  show_unsharded(call.copies, true);
}

void Runtime::went_unsharded(Parameter& p) {
  unsharded_.push_back(&p);
  // requires_grad may have been switched on since; the node must expect full gradients.
  if (!p.accumulator && p.tensor().requires_grad()) install_gradient_hooks(*this, p);
  if (!backward_) follow_stream(p);
}

void Runtime::drop_copies() {
  for (WholeCopy* copy : copies_)
    if (!copy->owner().shows_unsharded()) copy->drop();
}

void Runtime::show_sharded() {
  for (Parameter* p : unsharded_) p->show_sharded();
  unsharded_.clear();
  if (gathered_bytes() == 0) arena_.trim();
}

// See Note [Shards in host memory].
void Runtime::await_host_memory() {
  if (!offloads_ || left_out("host wait")) return;
  reductions_lane_->synchronize();  // where gradients come home
  if (hybrid_reducer_) hybrid_reducer_->lane().synchronize();
}

// Note [Writes in forward]
// What is gathered is let go of: a write to it in forward (nn.Embedding's max_norm, weight.clamp_(), a moving
// average in a frozen parameter) would last until then, and be made to rows that other ranks hold. It shows
// in the parameter's version, which only in-place operations raise, and is refused. Writes to what every rank
// holds in full last; where ranks write different values, the next digest of the replicas tells. A write
// through p.data leaves no version behind.
void Runtime::refuse_write(const Parameter& p, const std::string& where) {
  throw_error(
      ErrorKind::Sharding,
      c10::str("OSDP: rank ", rank(), ": parameter '", p.name(), "' was written to in ", where,
               " (nn.Embedding(max_norm=...), weight.clamp_(), a moving average?). What is written to a ",
               "sharded parameter there is lost, and other ranks would not have it. Write between steps, ",
               "to this rank's part of it or inside osdp.summon_full_params(model); or choose NO_SHARD for ",
               "it in the plan and write the same values on every rank."));
}

void Runtime::check_written(const Call& call) {
  const auto check = [&](const Parameter& p) {
    if (p.shows_unsharded() && p.written())
      refuse_write(p, call.module.empty() ? "the model's forward" : "forward of '" + call.module + "'");
  };
  for (const auto* units : {&call.units, &call.slices})
    for (const Unit* unit : *units)
      for (const Slot& slot : unit->slots) check(slot.owner());
  for (const WholeCopy* copy : call.copies) check(copy->owner());
}

void Runtime::check_written() {
  for (const Parameter* p : unsharded_)
    if (p->written()) refuse_write(*p, backward_ ? "backward" : "forward");
}

// Of NO_SHARD parameters, on the way out.
void Runtime::note_writes() {
  for (Parameter* p : replicated_)
    if (!p->shows_unsharded() && p->written()) {
      p->written_in_forward = true;
      p->note_version();
    }
}

void Runtime::set_accumulates(bool accumulates) {
  accumulates_ = accumulates;
  buckets_.set_accumulates(accumulates);
}

// Between passes, parameters sharded; see Note [Micro-batches between steps].
void Runtime::look_for_a_step() {
  bool written = false, gradients = false;
  for (const auto& p : params_) {
    if (p->absent) continue;
    written |= p->written();
    gradients |= p->local_grad().defined();
  }
  if (written || !gradients) set_accumulates(false);
}

void Runtime::open(Call& call) {
  OSDP_CHECK(
      !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer) || units_.empty(), Sharding,
      "OSDP: torch.jit.trace of a sharded model would keep memory that it is only gathered into. Trace the "
      "model before fully_shard, or another one that has loaded this one's state_dict().");
  OSDP_CHECK(!summoned_, Sharding, "OSDP: module '", call.module,
             "' was called inside summon_full_params; leave that context before a forward.");
  look_for_a_step();
  for (const auto& p : params_) {
    if (p->absent) continue;
    p->check_local();
    p->keep_node();
    p->note_version();
    // NO_SHARD, and unfrozen since it was sharded: its gradients are averaged from now on.
    if (!p->accumulator && p->whole() && p->tensor().requires_grad() && place_of(*p).bucket)
      install_gradient_hooks(*this, *p);
    if (p->whole() && !p->mixed()) follow_stream(*p);  // others when they go unsharded
  }
  ++epoch_;
  grad_forward_ = at::GradMode::is_enabled();
  forward_order_.begin();
  root_forward_ = call.root;
  if (call.root && grad_forward_) {
    const auto now = std::chrono::steady_clock::now();
    if (last_step_) {
      if (step_seconds_.size() == kStepsKept) step_seconds_.erase(step_seconds_.begin());
      step_seconds_.push_back(std::chrono::duration<double>(now - *last_step_).count());
    }
    last_step_ = now;
    check_replicas();  // of a forward without a backward
    if (std::exchange(compares_replicas_, false)) {
      replicas_.submit(*lane_, collectives_, replicated_, accumulates_);
      if (hybrid_reducer_)
        column_replicas_.submit(hybrid_reducer_->lane(), hybrid_.replicate, in_columns_, accumulates_);
    }
  }
  try {
    if (call.root || call.method) {
      for (const auto& unit : units_) show_unsharded({unit.get()});
      show_unsharded(copies_, true);
    } else {
      show_unsharded(call);
    }
  } catch (...) {  // the call is not on the stack yet: no end of it will put parameters back
    show_sharded();
    throw;
  }
}

// Before the outermost call ends: what is still gathered and not kept for the backward goes.
void Runtime::close(bool failed) {
  for (const auto& unit : units_)
    if (failed || !unit->keep) reshard(*unit);
  if (!failed && root_forward_) forward_order_.end();
  root_forward_ = false;
  await_host_memory();
  note_writes();
  std::exception_ptr error;
  try {
    if (!failed) check_written();
  } catch (...) {
    error = std::current_exception();
  }
  show_sharded();
  if (failed || !grad_forward_) drop_copies();
  if (failed) tell_raised();
  if (error) std::rethrow_exception(error);
  call_hooks();
}

void Runtime::tell_place() {
  const std::string* place = nullptr;
  if (!stack_.empty())
    place = backward_ ? stack_.back().call->in_recomputation : stack_.back().call->in_forward;
  lane_->health().at(place);
}

void Runtime::tell_raised() { lane_->health().raised(std::exchange(exception_text_, "")); }

bool Runtime::wants_inputs(const Call& call) const {
  return at::GradMode::is_enabled() &&
         std::any_of(call.units.begin(), call.units.end(), [](const Unit* u) { return u->frozen_part(); });
}

// Note [Functions that are recomputed]
// A re-entrant checkpoint runs a function without a graph in forward, and again in backward, in a backward of
// its own. Modules that the function calls are hooked; parameters that it reads by itself are gathered for
// the module whose forward it is part of, and that call is not run again. Their gradients of the outer
// backward may all be there before the function has read them, since the inner backward's are not in the
// outer graph. So where a module is called without a graph within a call that has one, the units of that call
// stay gathered to the end of backward.
void Runtime::note_recomputation() {
  for (const Frame& frame : stack_)
    if (frame.grad)
      for (Unit* unit : frame.call->units) unit->recomputed = true;
}

void Runtime::begin_call(Call& call, const std::vector<at::Tensor>& inputs) {
  NoInference no_inference;
  if (stack_.empty()) await_backward();
  if (stack_.empty() && !backward_) {
    // A model called for the first time inside a backward (a checkpoint around the whole of it) joins that
    // backward.
    if (current_graph_task() != -1)
      begin_backward();
    else
      open(call);
  } else if (!root_forward_ && !backward_) {
    show_unsharded(call);  // within the call of a submodule by itself
  }
  const bool grad = at::GradMode::is_enabled();
  if (!grad) note_recomputation();
  stack_.push_back({&call, inputs.empty() ? nullptr : std::make_shared<Invocation>(), {}, false, grad});
  stack_.back().range.begin(call.module, backward_ ? "recomputation" : "forward");
  tell_place();
  for (Unit* unit : call.units) {
    use(*unit);
    ++unit->running;
  }
  if (!inputs.empty()) watch_inputs(*this, call, inputs, stack_.back().invocation);
}

bool Runtime::begins_forward(const Call& call) {
  return !stack_.empty() && stack_.back().call == &call && !std::exchange(stack_.back().in_forward, true);
}

void Runtime::reshard_after_forward(Call& call, Unit& unit, bool failed) {
  if (unit.running > 0 || unit.in_backward || unit.state != Unit::State::Unsharded) return;
  if (failed) return reshard(unit);
  if (unit.again) {
    unit.keep = true;
    return;
  }
  if (backward_) {  // a recomputation
    if (call.hold)
      unit.held = true;
    else
      reshard(unit);
    return;
  }
  if (grad_forward_ &&
      (unit.mode == Mode::ShardGradOp || (root_forward_ && forward_order_.ends_with(&unit)))) {
    unit.keep = true;
    return;
  }
  if (call.method) return reshard(unit);
  const auto at = std::find(call.units.begin(), call.units.end(), &unit) - call.units.begin();
  if (!call.seen[at]) {
    call.seen[at] = 1;
    ++unit.calls_seen;
  }
  if (unit.calls_seen == static_cast<int64_t>(unit.calls.size())) reshard(unit);
}

void Runtime::end_call(Call& call, const std::vector<at::Tensor>& outputs, bool failed) {
  NoInference no_inference;
  const bool begun =
      std::any_of(stack_.begin(), stack_.end(), [&](const Frame& f) { return f.call == &call; });
  if (!begun) return;  // its begin failed before it was noted
  // Calls above it never ended (an exception that hooks are not told of): they end now, failed.
  while (stack_.back().call != &call) end_call(*stack_.back().call, {}, true);
  const std::shared_ptr<Invocation> invocation = std::move(stack_.back().invocation);
  stack_.pop_back();
  std::exception_ptr error;
  try {
    if (!failed) check_written(call);
  } catch (...) {
    error = std::current_exception();
    failed = true;
  }
  if (!failed && at::GradMode::is_enabled()) watch_outputs(*this, call, outputs, invocation);
  for (Unit* unit : call.units)
    if (unit->running > 0) {
      --unit->running;
      reshard_after_forward(call, *unit, failed);
    }
  if (!backward_) tell_place();
  if (stack_.empty() && !backward_) close(failed);
  if (error) std::rethrow_exception(error);
}

}  // namespace osdp::runtime
