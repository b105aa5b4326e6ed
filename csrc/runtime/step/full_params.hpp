// FullParams: full parameters between training steps, for state dicts, summon_full_params and clipping.
//
// Invariants: nothing here runs within a forward or backward. While parameters are shown in full, these are
// separate tensors that belong to no unit. Where all are (summon), a forward without gradients computes with
// them, and one with gradients is refused. Every rank must make the same calls, except for those forwards.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/lane.hpp"
#include "runtime/step/call_stack.hpp"
#include "runtime/step/graph_task.hpp"
#include "runtime/step/norm.hpp"
#include "runtime/step/step_state.hpp"
#include "runtime/store/model_shards.hpp"

namespace osdp::runtime {

class FullParams {
 public:
  FullParams(const ModelShards& shards, const StepState& step, const CallStack& stack,
             std::shared_ptr<comm::Lane> lane, std::shared_ptr<comm::Collectives> collectives,
             at::Device device, int64_t model)
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

  // All parameters, in a scope of the user's. Those that are shown already are left to whoever shows them.
  bool summoned() const { return summoned_; }
  bool shows_any() const;  // in full, all or some
  void summon(bool with_grads);
  void unsummon(bool writeback);
  // Around a call of a module in that scope: see Note [Forwards of what is summoned]. take_back returns false
  // if nothing was lent to the call.
  bool lends() const { return summoned_ && !in_pass() && current_graph_task() == -1; }
  void lend(const Call& call);
  bool take_back(const Call& call);
  // A slice of a split weight that is shown in full, as its matrix product takes it.
  at::Tensor slice_of_summoned(const Parameter& param, int64_t slice) const;

  // Shows the full values of those of `params` that show this rank's part, and returns which these are. After
  // an error none is shown. `keep`: what is written to them before a call of a module (see hide) is kept.
  std::vector<int64_t> show_full(const std::vector<int64_t>& params, bool with_grads, bool keep);
  // Ends it. `writeback`: this rank's part of what was written is kept.
  void show_local(const std::vector<int64_t>& params, bool writeback);
  // Around a forward in that scope (a hook that calls a module, a parametrization): this rank's parts
  // meanwhile.
  void hide();
  void show_hidden();

  // The norm of all gradients, with one collective; if it exceeds max_norm, all gradients are scaled down to
  // it. `parts`: of the models inside this one that are sharded over other ranks, whose gradients count too.
  at::Tensor clip_grad_norm(double max_norm, double norm_type, bool error_if_nonfinite,
                            const std::vector<const FullParams*>& parts = {}) const;
  // The pieces of `local` (this rank's part of a parameter or its gradient) that this rank contributes to a
  // sum over all ranks. Another rank contributes the remaining ones.
  std::vector<at::Tensor> counted_pieces(int64_t param, const at::Tensor& local) const;
  // The norm's terms of `counted`, reduced over all ranks. `function` and `details` describe the request and
  // must be equal on all ranks.
  NormTerms norm_terms(const std::vector<at::Tensor>& counted, double norm_type, const char* function,
                       std::string details) const;
  // The parameter whose memory this tensor shares; null: none of this model.
  const Parameter* owner_of(const at::Tensor& tensor) const;

 private:
  bool in_pass() const { return !stack_.empty() || step_.in_backward; }
  void check_between_steps() const;
  void add_gradients(std::vector<at::Tensor>& gradients, std::vector<at::Tensor>& counted) const;

  const ModelShards& shards_;
  const StepState& step_;
  const CallStack& stack_;
  const std::shared_ptr<comm::Lane> lane_;
  const std::shared_ptr<comm::Collectives> collectives_;  // of all ranks, on lane_
  const at::Device device_;                               // that runs the computation
  const int64_t model_;
  struct Aside {
    at::Tensor local, grad;
    at::Tensor hidden;  // the full value, during a forward
    bool keep = false;
  };
  std::vector<Aside> aside_;  // by parameter: what it held before it was shown in full; undefined: it is not
  bool summoned_ = false;
  std::vector<int64_t> summoned_params_;
  struct Lent {
    const Call* call;
    std::vector<std::pair<Parameter*, at::Tensor>> casts;  // and the full values that they are of
  };
  std::vector<Lent> lent_;  // calls that run while all is summoned, innermost last
};

}  // namespace osdp::runtime
