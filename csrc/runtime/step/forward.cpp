#include "runtime/step/forward.hpp"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "runtime/step/full_params.hpp"
#include "runtime/step/graph_task.hpp"
#include "runtime/step/no_inference.hpp"

namespace osdp::runtime {

// Called between passes, with parameters sharded; see Note [Micro-batches between steps].
void ForwardPass::look_for_a_step() {
  bool written = false, gradients = false;
  for (const auto& p : shards_.params()) {
    if (p->absent()) continue;
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
  replicas_.check();  // if the last forward had no backward
  replicas_.submit();
}

void ForwardPass::open(Call& call) {
  OSDP_CHECK(
      !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer) || shards_.units().empty(), Sharding,
      "OSDP: torch.jit.trace of a sharded model would record memory that holds gathered parameters only "
      "during a call. Trace the model before fully_shard, or an unsharded model that has loaded its "
      "state_dict().");
  units_.end_read_only();
  full_params_.hide();
  try {
    open_hidden(call);
  } catch (...) {
    full_params_.show_hidden();
    throw;
  }
}

void ForwardPass::open_hidden(Call& call) {
  look_for_a_step();
  for (const auto& p : shards_.params()) {
    if (p->absent()) continue;
    p->check_local();
    p->keep_node();
    p->note_version();
    // A NO_SHARD parameter that was unfrozen after sharding: its gradients are averaged from now on.
    if (!p->accumulator() && p->whole() && p->tensor().requires_grad() && buckets_.holds(*p))
      install_gradient_hooks(backward_.handle(), *p);
    if (p->whole() && !p->mixed()) follow_stream(*p);  // the others: when they are shown unsharded
  }
  ++step_.epoch;
  step_.grad_forward = at::GradMode::is_enabled();
  step_.root_forward = call.root;
  units_.begin_forward();
  if (call.root && step_.grad_forward) begin_training_step();
  try {
    views_.show_all_units();
    if (call.root || call.method)
      views_.show_all_copies(/*fresh=*/true);
    else
      views_.show_unsharded(call);
    views_.show_wrapped();
  } catch (...) {  // the call is not on the stack yet, so no end_call would restore the parameters
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
  full_params_.show_hidden();
  if (failed) stack_.tell_raised();
  if (error) std::rethrow_exception(error);
  views_.call_hooks();
}

namespace {

// See Note [Frozen parameters].
bool reads_frozen(const Call& call) {
  return at::GradMode::is_enabled() &&
         std::any_of(call.units.begin(), call.units.end(), [](const Unit* u) { return u->frozen_part(); });
}

}  // namespace

// Note [Functions that are recomputed]
// A re-entrant checkpoint runs a function without recording a graph in forward, and again during backward,
// followed by a nested backward of its own. Modules that the function calls are hooked. Parameters that it
// reads directly are gathered for the module whose forward contains it, and that call does not run again. All
// of their gradients from the outer backward may have been accumulated before the function reads them, since
// the nested backward's gradients are not in the outer graph. So if a module is called without a graph within
// a call that records one, the units of the enclosing call stay gathered until the end of backward: of
// every later one too, since a backward cannot tell whether the graph of another forward is still to come.
void ForwardPass::note_recomputation() {
  for (const CallStack::Frame& frame : stack_.frames())
    if (frame.grad) units_.keep_recomputed(*frame.call);
}

void ForwardPass::begin_call(Call& call) {
  NoInference no_inference;
  call.check_current();
  if (stack_.empty()) backward_.await_end();
  if (full_params_.lends()) return full_params_.lend(call);
  if (stack_.empty() && !step_.in_backward) {
    // A model whose outermost call is inside a backward (a checkpoint around the whole model) joins that
    // backward.
    if (current_graph_task() != -1)
      backward_.begin();
    else
      open(call);
  } else if (!step_.root_forward && !step_.in_backward) {
    views_.show_unsharded(call);  // within the call of a submodule on its own
    views_.show_wrapped();
  }
  const bool grad = at::GradMode::is_enabled();
  if (!grad) note_recomputation();
  const auto invocation = reads_frozen(call) ? std::make_shared<Invocation>() : nullptr;
  const uint64_t first_node = at::sequence_number::peek();
  if (invocation) invocation->first = first_node;
  CallStack::Frame& frame = stack_.push({&call, invocation, {}, false, grad, first_node});
  frame.range.begin(call.module, step_.in_backward ? "recomputation" : "forward");
  stack_.tell_place(step_.in_backward);
  units_.begin_call(call);
}

bool ForwardPass::begins_forward(const Call& call) {
  return !stack_.empty() && stack_.innermost().call == &call &&
         !std::exchange(stack_.innermost().in_forward, true);
}

void ForwardPass::end_call(Call& call, const std::vector<at::Tensor>& outputs, bool failed) {
  NoInference no_inference;
  if (full_params_.take_back(call)) return;
  const bool begun = std::any_of(stack_.frames().begin(), stack_.frames().end(),
                                 [&](const CallStack::Frame& f) { return f.call == &call; });
  if (!begun) return;  // its begin_call failed before it was pushed
  // Calls above it never ended (hooks are not called after an exception): they end now, as failed.
  while (stack_.innermost().call != &call) end_call(*stack_.innermost().call, {}, true);
  const std::shared_ptr<Invocation> invocation = std::move(stack_.innermost().invocation);
  const uint64_t first_node = stack_.innermost().first_node;
  stack_.pop();
  std::exception_ptr error;
  try {
    if (!failed) views_.check_written(call);
  } catch (...) {
    error = std::current_exception();
    failed = true;
  }
  if (!failed && at::GradMode::is_enabled()) {
    // The root's ends with the backward anyway.
    if (invocation && !call.root) watch_end(backward_.handle(), call, outputs, invocation);
    watch_outputs(backward_.handle(), call, outputs, first_node, invocation);
  }
  units_.end_call(call, failed);
  if (!step_.in_backward) stack_.tell_place(false);
  if (stack_.empty() && !step_.in_backward) close(failed);
  if (error) std::rethrow_exception(error);
}

}  // namespace osdp::runtime
