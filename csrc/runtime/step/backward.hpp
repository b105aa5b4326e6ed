// BackwardPass: handles the events of a backward.
//
// Invariants: between begin() and finish() or abort() the model's parameters show their full shape, and
// step.in_backward is true. begin() also arranges the end: a callback of the graph task calls finish(), or,
// if an exception destroys the callback, a guard that it captured calls abort(). After finish() all units are
// Sharded except those that a graph still needs, the gradients of all ranks are averaged, and the lanes are
// idle.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "runtime/step/autograd_hooks.hpp"
#include "runtime/step/call_stack.hpp"
#include "runtime/step/param_views.hpp"
#include "runtime/step/replica_checks.hpp"
#include "runtime/step/unit_scheduler.hpp"

namespace osdp::runtime {

class BackwardPass {
 public:
  BackwardPass(const ModelShards& shards, StepState& step, ParamViews& views, UnitScheduler& units,
               GradientBuckets& buckets, ReplicaChecks& replicas, CallStack& stack)
      : shards_(shards),
        step_(step),
        views_(views),
        units_(units),
        buckets_(buckets),
        replicas_(replicas),
        stack_(stack) {}

  // Sets the handle that hooks and graphs hold; it keeps the whole runtime alive. Must be set before the
  // first hook is installed.
  void set_handle(std::weak_ptr<BackwardPass> handle) { handle_ = std::move(handle); }
  std::shared_ptr<BackwardPass> handle() const { return handle_.lock(); }
  bool installed() const { return step_.installed; }

  void begin();  // no-op during a backward
  // The backward of a call begins: an output's gradient has arrived. `invocation` may be null.
  void begin_call(const Call& call, Invocation* invocation);
  // One of its last nodes has run; with the last of them the backward of the call ends.
  void node_has_run(const Call& call, Invocation& invocation);
  void before_gradient(Parameter& param);
  // `made`: the gradient that autograd accumulated.
  void after_gradient(Parameter& param, const at::Tensor& made);
  void begin_again();  // the backward of a graph that a backward has created begins, if this model has a part
                       // in it
  void finish();
  // Between steps: reduces what was kept under no_sync, as the end of a backward that reduces would.
  void reduce_kept();
  void abort() noexcept;  // after an exception: reshards everything; lanes are idle
  void await_end();       // until the last backward has ended, or its abort() has
  void note_exception(std::string text) { stack_.note_exception(std::move(text)); }

  // Throws if the caller asks for gradients of parameters of which this rank has its own only (`wanted`: the
  // nodes that accumulate what torch.autograd.grad is to return): Note [Gradients that are asked for].
  void check_asked(const std::function<bool(torch::autograd::Node*)>& wanted) const;

  // Whether the last backward kept gradients under no_sync. The first of `among` with such a gradient that
  // has been neither reduced nor dropped since; null: none.
  bool kept_unreduced() const { return kept_unreduced_; }
  Parameter* unreduced(const std::vector<const Parameter*>& among) const;

 private:
  void leave();  // the pass has ended: parameters are as they are between passes
  void show();
  // Whether autograd adds its gradient to the one that this rank keeps.
  bool accumulates_in_place(const Parameter& param) const;
  void take_whole_gradient(Parameter& param, const at::Tensor& made);

  const ModelShards& shards_;
  StepState& step_;
  ParamViews& views_;
  UnitScheduler& units_;
  GradientBuckets& buckets_;
  ReplicaChecks& replicas_;
  CallStack& stack_;
  std::weak_ptr<BackwardPass> handle_;
  bool creates_graph_ = false;        // this backward; see Note [Backward of a backward]
  bool begun_at_gradient_ = false;    // see Note [A backward that begins at a gradient]
  bool graph_created_ = false;        // by the last backward
  bool kept_unreduced_ = false;       // the last backward was under no_sync
  int asked_task_ = -1;               // the last graph task that was examined for them
  std::shared_ptr<BackwardEnd> end_;  // of the last backward, until a forward has waited for it
  comm::PhaseRange range_;            // from the begin of one call's backward to the next one's
};

}  // namespace osdp::runtime
