// FullParams: whole parameters between training steps: for state dicts, summon_full_params and clipping.
//
// Invariants: nothing here runs within a forward or backward. While parameters are summoned they show full
// tensors of their own, which no unit knows, and a forward is refused. All ranks call alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/lane.hpp"
#include "runtime/step/call_stack.hpp"
#include "runtime/step/norm.hpp"
#include "runtime/step/step_state.hpp"
#include "runtime/store/model_shards.hpp"

namespace osdp::runtime {

class FullParams {
 public:
  FullParams(const ModelShards& shards, const StepState& step, const CallStack& stack,
             std::shared_ptr<Lane> lane, std::shared_ptr<Collectives> collectives, at::Device device,
             int64_t model)
      : shards_(shards),
        step_(step),
        stack_(stack),
        lane_(std::move(lane)),
        collectives_(std::move(collectives)),
        device_(device),
        model_(model) {}

  // The full tensor of which `local` is this rank's part (the parameter's data, its gradient, an optimizer's
  // state).
  at::Tensor gather(int64_t param, const at::Tensor& local, const char* what = "whole") const;

  bool summoned() const { return summoned_; }
  void summon(bool with_grads);
  void unsummon(bool writeback);

  // The norm of all gradients, one collective; if larger than max_norm all gradients are scaled to it.
  at::Tensor clip_grad_norm(double max_norm, double norm_type, bool error_if_nonfinite) const;
  // Of what this rank holds of a parameter (or of its gradient, `local`) the pieces that it counts in a sum
  // over all ranks; the others another rank counts.
  std::vector<at::Tensor> counted_pieces(int64_t param, const at::Tensor& local) const;
  // Of `counted`, over all ranks; `function` and `details` say what was asked for, alike on all of them.
  NormTerms norm_terms(const std::vector<at::Tensor>& counted, double norm_type, const char* function,
                       std::string details) const;
  // The parameter in whose memory this tensor lies; null where it is none of ours.
  const Parameter* owner_of(const at::Tensor& tensor) const;

 private:
  bool in_pass() const { return !stack_.empty() || step_.in_backward; }

  const ModelShards& shards_;
  const StepState& step_;
  const CallStack& stack_;
  const std::shared_ptr<Lane> lane_;
  const std::shared_ptr<Collectives> collectives_;  // of all ranks, on lane_
  const at::Device device_;                         // that computes
  const int64_t model_;
  bool summoned_ = false;
  std::vector<at::Tensor> summoned_local_, summoned_grad_;
};

}  // namespace osdp::runtime
