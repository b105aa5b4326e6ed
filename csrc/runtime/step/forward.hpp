// ForwardPass: what happens when a module is called.
//
// Invariants: from the outermost call's begin to its end its parameters (of the model's call, and of a
// method's: all) show their full shape; while a call runs its units are Unsharded. Calls end in the order
// opposite to that in which they began: those whose end nobody told end, failed, with the one around them.
// The outermost call's end leaves only units Unsharded that are kept for the backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <optional>
#include <vector>

#include "runtime/step/backward.hpp"

namespace osdp::runtime {

class FullParams;

class ForwardPass {
 public:
  ForwardPass(const ModelShards& shards, StepState& step, ParamViews& views, UnitScheduler& units,
              GradientBuckets& buckets, ReplicaChecks& replicas, CallStack& stack, BackwardPass& backward,
              const FullParams& full_params)
      : shards_(shards),
        step_(step),
        views_(views),
        units_(units),
        buckets_(buckets),
        replicas_(replicas),
        stack_(stack),
        backward_(backward),
        full_params_(full_params) {}

  // Whether begin_call needs the inputs that require gradients: see Note [Frozen parameters].
  static bool wants_inputs(const Call& call);
  void begin_call(Call& call, const std::vector<at::Tensor>& inputs);
  // A forward is about to run: true if it is the first one of the innermost call, which is `call`; else it
  // was called by itself, and nothing is gathered for it yet.
  bool begins_forward(const Call& call);
  void end_call(Call& call, const std::vector<at::Tensor>& outputs, bool failed);

  // Seconds from one training forward's beginning to the next's: the last kStepsKept of them.
  const std::vector<double>& step_seconds() const { return step_seconds_; }

 private:
  void open(Call& call);    // the outermost one
  void close(bool failed);  // before it ends
  void look_for_a_step();
  void begin_training_step();
  void note_recomputation();

  static constexpr size_t kStepsKept = 1000;

  const ModelShards& shards_;
  StepState& step_;
  ParamViews& views_;
  UnitScheduler& units_;
  GradientBuckets& buckets_;
  ReplicaChecks& replicas_;
  CallStack& stack_;
  BackwardPass& backward_;
  const FullParams& full_params_;
  std::vector<double> step_seconds_;
  std::optional<std::chrono::steady_clock::time_point> last_step_;
};

}  // namespace osdp::runtime
