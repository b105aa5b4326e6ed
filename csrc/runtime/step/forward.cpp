#include "runtime/step/forward.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "runtime/step/full_params.hpp"
#include "runtime/step/graph_task.hpp"
#include "runtime/step/no_inference.hpp"

namespace osdp::runtime {

// Between passes, parameters sharded; see Note [Micro-batches between steps].
void ForwardPass::look_for_a_step() {
  bool written = false, gradients = false;
  for (const auto& p : shards_.params()) {
    if (p->absent) continue;
    written |= p->written();
    gradients |= p->local_grad().defined();
  }
  if (written || !gradients) step_.accumulates = false;
}

void ForwardPass::begin_training_step() {
  const auto now = std::chrono::steady_clock::now();
  if (last_step_) {
    if (step_seconds_.size() == kStepsKept) step_seconds_.erase(step_seconds_.begin());
    step_seconds_.push_back(std::chrono::duration<double>(now - *last_step_).count());
  }
  last_step_ = now;
  replicas_.check();  // of a forward without a backward
  replicas_.submit();
}

void ForwardPass::open(Call& call) {
  OSDP_CHECK(
      !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer) || shards_.units().empty(), Sharding,
      "OSDP: torch.jit.trace of a sharded model would keep memory that it is only gathered into. Trace the "
      "model before fully_shard, or another one that has loaded this one's state_dict().");
  OSDP_CHECK(!full_params_.summoned(), Sharding, "OSDP: module '", call.module,
             "' was called inside summon_full_params; leave that context before a forward.");
  look_for_a_step();
  for (const auto& p : shards_.params()) {
    if (p->absent) continue;
    p->check_local();
    p->keep_node();
    p->note_version();
    // NO_SHARD, and unfrozen since it was sharded: its gradients are averaged from now on.
    if (!p->accumulator && p->whole() && p->tensor().requires_grad() && buckets_.holds(*p))
      install_gradient_hooks(backward_.handle(), *p);
    if (p->whole() && !p->mixed()) follow_stream(*p);  // others when they show their full shape
  }
  ++step_.epoch;
  step_.grad_forward = at::GradMode::is_enabled();
  step_.root_forward = call.root;
  units_.begin_forward();
  if (call.root && step_.grad_forward) begin_training_step();
  try {
    if (call.root || call.method)
      views_.show_all_unsharded(/*fresh=*/true);
    else
      views_.show_unsharded(call);
  } catch (...) {  // the call is not on the stack yet: no end of it will put parameters back
    views_.show_sharded();
    units_.give_back_idle_memory();
    throw;
  }
}

void ForwardPass::close(bool failed) {
  units_.end_forward(failed);
  step_.root_forward = false;
  units_.await_host_memory();
  views_.note_writes();
  std::exception_ptr error;
  try {
    if (!failed) views_.check_written();
  } catch (...) {
    error = std::current_exception();
  }
  views_.show_sharded();
  units_.give_back_idle_memory();
  if (failed || !step_.grad_forward) views_.drop_copies();
  if (failed) stack_.tell_raised();
  if (error) std::rethrow_exception(error);
  views_.call_hooks();
}

bool ForwardPass::wants_inputs(const Call& call) {
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
void ForwardPass::note_recomputation() {
  for (const CallStack::Frame& frame : stack_.frames())
    if (frame.grad) units_.keep_recomputed(*frame.call);
}

void ForwardPass::begin_call(Call& call, const std::vector<at::Tensor>& inputs) {
  NoInference no_inference;
  if (stack_.empty()) backward_.await_end();
  if (stack_.empty() && !step_.in_backward) {
    // A model called for the first time inside a backward (a checkpoint around the whole of it) joins that
    // backward.
    if (current_graph_task() != -1)
      backward_.begin();
    else
      open(call);
  } else if (!step_.root_forward && !step_.in_backward) {
    views_.show_unsharded(call);  // within the call of a submodule by itself
  }
  const bool grad = at::GradMode::is_enabled();
  if (!grad) note_recomputation();
  const auto invocation = inputs.empty() ? nullptr : std::make_shared<Invocation>();
  CallStack::Frame& frame = stack_.push({&call, invocation, {}, false, grad});
  frame.range.begin(call.module, step_.in_backward ? "recomputation" : "forward");
  stack_.tell_place(step_.in_backward);
  units_.begin_call(call);
  if (invocation) watch_inputs(backward_.handle(), call, inputs, invocation);
}

bool ForwardPass::begins_forward(const Call& call) {
  return !stack_.empty() && stack_.innermost().call == &call &&
         !std::exchange(stack_.innermost().in_forward, true);
}

void ForwardPass::end_call(Call& call, const std::vector<at::Tensor>& outputs, bool failed) {
  NoInference no_inference;
  const bool begun = std::any_of(stack_.frames().begin(), stack_.frames().end(),
                                 [&](const CallStack::Frame& f) { return f.call == &call; });
  if (!begun) return;  // its begin failed before it was noted
  // Calls above it never ended (an exception that hooks are not told of): they end now, failed.
  while (stack_.innermost().call != &call) end_call(*stack_.innermost().call, {}, true);
  const std::shared_ptr<Invocation> invocation = std::move(stack_.innermost().invocation);
  stack_.pop();
  std::exception_ptr error;
  try {
    if (!failed) views_.check_written(call);
  } catch (...) {
    error = std::current_exception();
    failed = true;
  }
  if (!failed && at::GradMode::is_enabled()) watch_outputs(backward_.handle(), call, outputs, invocation);
  units_.end_call(call, failed);
  if (!step_.in_backward) stack_.tell_place(false);
  if (stack_.empty() && !step_.in_backward) close(failed);
  if (error) std::rethrow_exception(error);
}

}  // namespace osdp::runtime
