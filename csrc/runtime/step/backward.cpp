#include "runtime/step/backward.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/in_memory.hpp"
#include "ops/accumulate.hpp"
#include "runtime/step/graph_task.hpp"
#include "runtime/step/no_inference.hpp"
#include "runtime/store/storage_access.hpp"

namespace osdp::runtime {

// Note [A backward]
// It begins with the first hook that fires (on an output of a call, usually the model's, or on a gradient),
// shows all parameters unsharded, and ends in a callback of the graph task. Re-entrant backwards (reentrant
// checkpoints) run within it and end with it. A unit is gathered at the first gradient of its call's outputs,
// and is reduced and resharded when the last gradient that this graph task produces for it has been
// accumulated. A gradient is complete when its AccumulateGrad node runs, which happens once per graph task,
// so parameters used in several calls need no use counts.

void BackwardPass::begin() {
  if (step_.in_backward) return;
  end_ = at_end_of_graph_task(handle());  // first: from here on an exception leads to abort()
  show();
}

void BackwardPass::show() {
  units_.end_read_only();
  step_.in_backward = true;
  units_.begin_backward();
  views_.show_all_units();
  views_.show_all_copies(/*fresh=*/false);
  views_.show_wrapped();
}

void BackwardPass::reduce_kept() {
  OSDP_CHECK(!step_.in_backward && stack_.empty(), Sharding, "OSDP: ", step_.me(),
             ": gradients kept under no_sync cannot be reduced within a forward or backward");
  OSDP_CHECK(step_.sync, Sharding, "OSDP: ", step_.me(),
             ": gradients kept under no_sync cannot be reduced within it");
  await_end();
  try {
    show();
    finish();
  } catch (...) {
    abort();
    throw;
  }
}

// Note [Backward of a backward]
// With create_graph=True (a gradient penalty, a Hessian-vector product) the nodes of the new graph read the
// parameters again in the next backward, and no hook on a module's output precedes those reads. So the units
// that such a backward has gathered stay gathered until the end of the next backward without create_graph. A
// differentiable gradient of a parameter is not supported, because the mean over ranks has no graph; it is
// refused. A node of the new graph unpacks the parameter itself, which is this rank's rows until a backward
// begins, so it must begin at the gradient that was returned to the caller: the patch of torch.autograd that
// converts errors hooks it (osdp/sharding/torch_patches/autograd_errors.py).
void BackwardPass::begin_again() {
  NoInference no_inference;
  if (!graph_created_) return;
  begin();
  // It may reach no output of a call (autograd.functional.jvp), and be itself differentiated.
  creates_graph_ |= at::GradMode::is_enabled();
}

// Note [Gradients that are asked for]
// torch.autograd.grad(loss, parameters) returns the gradients that autograd computed: this rank's own, full
// and not averaged. In one process they would be those of the whole batch, so the call is refused; within
// no_sync, where a rank's own gradients are expected, it is allowed. Nodes of the calls see it in the engine;
// where none of them is in the graph (parameters that every rank holds, within a forward: an inner step of
// meta-learning), the call of the engine does (osdp/sharding/torch_patches/autograd_errors.py).
void BackwardPass::check_asked(const std::function<bool(torch::autograd::Node*)>& wanted) const {
  for (const auto& p : shards_.params()) {
    const bool own = step_.alone || !step_.syncs(*p);
    if (own && !p->split()) continue;
    OSDP_CHECK(!wanted(p->accumulator().get()), Sharding, "OSDP: ", step_.me(),
               ": torch.autograd.grad requests the gradient of parameter '", p->name(), "', ",
               p->split()
                   ? "which is computed in slices and never has a full gradient. "
                   : "which would be this rank's own, not the average over ranks that backward computes. ",
               "Use loss.backward() and the parameter's .grad",
               p->split() ? ", or granularity 1 for it in the plan."
                          : "; or call it inside osdp.no_sync(model) if this rank's own full gradient is "
                            "what you want.");
  }
}

void BackwardPass::begin_call(const Call& call, Invocation* invocation) {
  NoInference no_inference;
  call.check_current();
  begin();
  const int task = current_graph_task();
  if (std::exchange(asked_task_, task) != task) check_asked(is_captured);
  const bool again = at::GradMode::is_enabled();
  creates_graph_ |= again;
  stack_.tell_backward_of(call);
  range_.begin(call.module, "backward");
  const bool reads = invocation && std::exchange(invocation->backward, step_.backwards) != step_.backwards;
  if (reads)
    invocation->left = std::count_if(invocation->last.begin(), invocation->last.end(), in_graph_task);
  units_.begin_call_backward(call, reads, again);
}

void BackwardPass::node_has_run(const Call& call, Invocation& invocation) {
  if (!step_.in_backward || invocation.backward != step_.backwards || --invocation.left > 0) return;
  invocation.backward = -1;
  NoInference no_inference;
  units_.end_call_backward(call);
}

// Note [Gradients that are scaled]
// A gradient's scale (FSDP2's set_gradient_divide_factor) applies to each new gradient once, before ranks are
// averaged: what is kept, under no_sync or from averaged micro-batches, has it already. Gradients of sharded
// units and copies arrive by themselves and are scaled in their own memory. Autograd adds those of other
// parameters to the kept one, which is therefore divided by the scale before and multiplied with the sum
// afterwards.
bool BackwardPass::accumulates_in_place(const Parameter& param) const {
  const ModelShards::Place& place = shards_.place_of(param);
  return !place.copy && !(place.unit && !buckets_.holds(param));
}

// Note [A backward that begins at a gradient]
// If no output of a call is in the graph before a sharded parameter's gradient (a term of the weight that a
// hook kept), what computed that gradient may have read the parameter, which autograd saves as it is: this
// rank's rows. Where these broadcast against the gradient, the result is another number without an error. So
// this is refused, unless unshard() showed the full value. Where the first gradient is one of a parameter
// that every rank holds, the sharded ones after it may have been read before it, unless a call's backward
// came first.
void BackwardPass::before_gradient(Parameter& param) {
  NoInference no_inference;
  begun_at_gradient_ |= !step_.in_backward;
  const Unit* unit = shards_.place_of(param).unit;
  const bool read_in_full = param.read_only() || param.was_read_only();
  begin();
  const bool rows = begun_at_gradient_ && unit && !units_.in_backward(*unit) && !read_in_full;
  OSDP_CHECK(
      !rows, Sharding, "OSDP: ", step_.me(), ": a backward begins at the gradient of parameter '",
      param.name(),
      "' instead of at an output of the model: a term that was kept from forward (by a hook, an "
      "attribute) may read this rank's rows there. Add it to the loss that the model's output gives and "
      "call backward once, or return it from forward.");
  param.hide_hooks();
  buckets_.await(param);
  if (param.gradient_scale() != 1 && accumulates_in_place(param) && param.tensor().grad().defined())
    param.tensor().mutable_grad().div_(param.gradient_scale());
}

// Note [Gradients that share memory]
// A reduction works in place in the gradient's memory. AccumulateGrad steals a gradient without a copy if
// nothing else holds that tensor, but other tensors may be views of the same memory: if views of two
// parameters are added, the gradients of both share one storage. So the references to the storage are
// counted. Ours are .grad, the gradient that autograd passed in (`made`), and the base tensor if `made` is a
// view; any further one belongs to another tensor.
// Autograd holds `made` until the hook that submits the reduction has returned. The reduction may be over by
// then, and its result is made of the gradient's memory (Note [Means that are cast] in
// search/simulate/runtime_rules.hpp). So `made` and its base let go of it, and refuse to be read.
static bool shares(const at::Tensor& gradient, const at::Tensor& made) {
  const size_t ours = 2 + (made.defined() && made.is_view());
  return gradient.layout() == at::kStrided && gradient.storage().use_count() > ours;
}

static at::Tensor unshared(at::Tensor gradient, const at::Tensor& made) {
  return shares(gradient, made) ? gradient.clone() : gradient;
}

static void hand_over(const at::Tensor& made, const at::Tensor& gradient) {
  if (!made.defined() || !gradient.defined() || !made.has_storage() || !gradient.has_storage()) return;
  if (!gradient.is_alias_of(made)) return;
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, at::DataPtr(nullptr, made.device()), nullptr, false);
  set_unreadable(*none.unsafeGetStorageImpl(),
                 "OSDP: this gradient has been taken to be averaged over ranks");
  const at::Tensor base(made.is_view() ? made._base() : at::TensorBase());
  for (const at::Tensor* each : {&made, &base})
    if (each->defined() && each->unsafeGetTensorImpl()->allow_tensor_metadata_change())
      each->unsafeGetTensorImpl()->set_storage_keep_dtype(none);
}

// `made`: the gradient from autograd; undefined for a split weight, whose slices have their own.
static void check_gradient(const Parameter& param, const at::Tensor& made) {
  if (!made.defined()) return;
  OSDP_CHECK(made.layout() != at::kStrided || comm::in_memory(made), Sharding,
             "OSDP: the gradient of parameter '", param.name(),
             "' is a tensor without values: a fake one (FakeTensorMode), a meta tensor, or a ",
             "subclass that wraps others. Run forward and backward on real, plain tensors.");
  OSDP_CHECK(!made.requires_grad(), Sharding,
             "OSDP: backward(create_graph=True) needs a differentiable gradient of parameter '", param.name(),
             "', but the mean over ranks is not differentiable. Compute the first gradient "
             "with torch.autograd.grad(output, input, create_graph=True), of an input or activation.");
  OSDP_CHECK(!param.split(), Sharding, "OSDP: parameter '", param.name(),
             "' is computed in slices but was used directly in the loss (a penalty on the weights?). Use the "
             "optimizer's weight_decay, or granularity 1 for it in the plan.");
}

void BackwardPass::after_gradient(Parameter& param, const at::Tensor& made) {
  NoInference no_inference;
  at::NoGradGuard no_grad;
  param.show_hooks();
  check_gradient(param, made);
  const ModelShards::Place& place = shards_.place_of(param);
  if (place.copy) take_whole_gradient(param, made);
  if (param.gradient_scale() != 1 && accumulates_in_place(param)) {
    at::Tensor& sum = param.tensor().mutable_grad();
    if (sum.defined()) sum = unshared(sum, made).mul_(param.gradient_scale());
  }
  if (buckets_.holds(param)) return buckets_.arrived(param);
  if (!place.unit) {  // one rank, or a split weight without NO_SHARD slices, which are reduced as units
    if (step_.alone) param.note_reduced();
    return;
  }
  at::Tensor gradient = param.tensor().grad();
  param.tensor().mutable_grad().reset();
  if (gradient.defined()) gradient = unshared(std::move(gradient), made);
  hand_over(made, gradient);
  if (gradient.defined() && param.gradient_scale() != 1) gradient.mul_(param.gradient_scale());
  units_.gradient_arrived(*place.unit, *place.slot, std::move(gradient));
}

// The gradient of a NO_SHARD parameter under mixed precision is either averaged by itself or added to the
// gradient that this rank keeps. A gradient kept under no_sync is in the parameter's own dtype already; it is
// averaged as the sum with the new one.
void BackwardPass::take_whole_gradient(Parameter& param, const at::Tensor& made) {
  at::Tensor gradient = param.tensor().grad();
  param.tensor().mutable_grad().reset();
  if (!gradient.defined()) return;
  OSDP_CHECK(
      gradient.layout() == at::kStrided, Sharding, "OSDP: parameter '", param.name(),
      "' got a sparse gradient, which mixed precision cannot average. Use sparse=False in its module.");
  if (!shares(gradient, made)) hand_over(made, gradient);
  if (param.gradient_scale() != 1)
    gradient = unshared(std::move(gradient), made).mul_(param.gradient_scale());
  if (at::Tensor* alone = buckets_.averaged_alone(param)) {
    *alone = alone->defined() ? wide_sum(*alone, gradient, param.own_dtype())
                              : unshared(std::move(gradient), made);
    return;
  }
  if (!buckets_.holds(param)) param.note_reduced();
  at::Tensor& kept = param.local_grad();
  if (kept.defined())
    ops::accumulate(kept, gradient);
  else
    kept = gradient.to(param.own_dtype());
}

void BackwardPass::finish() {
  OSDP_CHECK(step_.in_backward, Sharding, "OSDP: ", step_.me(),
             ": a backward ends that has not begun. This is a bug in OSDP; please report it.");
  NoInference no_inference;
  at::NoGradGuard no_grad;
  range_.end();
  units_.finish_units(creates_graph_);
  if (step_.sync) buckets_.flush();
  const bool averaged = units_.reduced() || buckets_.launched();
  units_.wait_reductions();
  buckets_.wait_all();
  units_.await_host_memory();
  units_.end_backward();
  kept_unreduced_ = std::any_of(shards_.params().begin(), shards_.params().end(),
                                [this](const auto& p) { return !step_.syncs(*p); });
  if (averaged) {
    step_.accumulates = true;
    replicas_.gradients_averaged();
  }
  if (stack_.empty()) views_.check_written();
  graph_created_ = creates_graph_;
  leave();
  if (stack_.empty()) views_.note_writes();
  replicas_.check();
  if (stack_.empty()) views_.call_hooks();
}

void BackwardPass::leave() {
  step_.in_backward = creates_graph_ = begun_at_gradient_ = false;
  ++step_.backwards;
  stack_.tell_place(step_.in_backward);
  if (!stack_.empty()) return;
  views_.show_sharded();
  units_.give_back_idle_memory();
  views_.drop_copies();
}

Parameter* BackwardPass::unreduced(const std::vector<const Parameter*>& among) const {
  if (!kept_unreduced_) return nullptr;
  if (Parameter* kept = units_.unreduced(among)) return kept;
  return buckets_.unreduced(among);
}

void BackwardPass::await_end() {
  if (!end_ || current_graph_task() != -1) return;
  const std::shared_ptr<BackwardEnd> end = std::exchange(end_, nullptr);
  end->await();
}

void BackwardPass::abort() noexcept {
  try {
    NoInference no_inference;
    at::NoGradGuard no_grad;
    units_.forget_reductions();
    range_.end();
    replicas_.forget();
    buckets_.forget();
    for (const auto& p : shards_.params()) {
      p->show_hooks();
      p->take_reduced();
    }
    units_.abort();
    units_.await_host_memory();
    leave();
    stack_.tell_raised();
  } catch (const std::exception& e) {
    TORCH_WARN("OSDP: the model could not be restored after an exception: ", e.what());
  }
}

}  // namespace osdp::runtime
