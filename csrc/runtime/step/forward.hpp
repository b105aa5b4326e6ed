// ForwardPass: handles calls of modules.
//
// Invariants: from the begin of the outermost call to its end its parameters (for the model's call or a
// method's: all parameters) show their full shape; while a call runs its units are Unsharded. Calls are
// nested; a call whose end was not reported ends as failed with the enclosing one. After the outermost call
// only units that are kept for the backward are Unsharded.
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
              FullParams& full_params)
      : shards_(shards),
        step_(step),
        views_(views),
        units_(units),
        buckets_(buckets),
        replicas_(replicas),
        stack_(stack),
        backward_(backward),
        full_params_(full_params) {}

  void begin_call(Call& call);
  // Called before a forward() runs. True if `call` is the innermost call and this is its first forward;
  // otherwise forward() was called directly, and nothing has been gathered for it yet.
  bool begins_forward(const Call& call);
  void end_call(Call& call, const std::vector<at::Tensor>& outputs, bool failed);

  // Seconds between the beginnings of consecutive training forwards: the last kStepsKept of them.
  const std::vector<double>& step_seconds() const { return step_seconds_; }

 private:
  void open(Call& call);  // begins the outermost call
  void open_hidden(Call& call);
  void close(bool failed);  // ends the outermost call
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
  FullParams& full_params_;
  std::vector<double> step_seconds_;
  std::optional<std::chrono::steady_clock::time_point> last_step_;
};

}  // namespace osdp::runtime
