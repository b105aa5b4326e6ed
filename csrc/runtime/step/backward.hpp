// BackwardPass: what happens when gradients flow.
//
// Invariants: between begin() and finish() or abort() the model's parameters show their full shape, and
// step.in_backward is true. Whoever begins one has also arranged its end: by a callback of the graph task,
// or, where an exception destroys that, by a guard in it. After either, all units are Sharded but those that
// a graph still needs, the gradients of all ranks are averaged, and the lanes are quiet.
#pragma once

#include <ATen/core/Tensor.h>

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

  // What hooks and graphs hold: with it the whole runtime lives. Before the first hook is installed.
  void set_handle(std::weak_ptr<BackwardPass> handle) { handle_ = std::move(handle); }
  std::shared_ptr<BackwardPass> handle() const { return handle_.lock(); }
  bool installed() const { return step_.installed; }

  void begin();  // unless one is under way
  // The backward of a call begins: an output has its gradient. `invocation` may be null.
  void begin_call(const Call& call, Invocation* invocation);
  // It is over: its inputs have theirs.
  void end_call(const Call& call, Invocation& invocation);
  void before_gradient(Parameter& param);
  void after_gradient(Parameter& param, const at::Tensor& made);  // made: what autograd accumulated
  void finish();
  void abort() noexcept;  // after an exception: everything resharded, parameters sharded, lanes quiet
  void await_end();       // until the last one has ended, and what an exception left is put back
  void note_exception(std::string text) { stack_.note_exception(std::move(text)); }

  // The first parameter whose gradient no_sync has kept and nothing has reduced or dropped since; null: none.
  Parameter* unreduced() const;

 private:
  void check_asked();
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
  bool kept_unreduced_ = false;       // the last backward was under no_sync
  int asked_task_ = -1;               // the graph task that check_asked() has looked at
  std::shared_ptr<BackwardEnd> end_;  // of the last one, until somebody has waited for it
  PhaseRange range_;                  // from one call's backward to the next one's
};

}  // namespace osdp::runtime
