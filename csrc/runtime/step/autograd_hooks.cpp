#include "runtime/step/autograd_hooks.hpp"

#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "comm/left_out.hpp"
#include "runtime/step/backward.hpp"
#include "runtime/step/graph_task.hpp"

namespace osdp::runtime {
namespace {

using torch::autograd::variable_list;

struct BeforeGradient final : torch::autograd::FunctionPreHook {
  std::weak_ptr<BackwardPass> pass;
  Parameter* param;
  BeforeGradient(std::weak_ptr<BackwardPass> b, Parameter& p) : pass(std::move(b)), param(&p) {}
  variable_list operator()(const variable_list& gradients) override {
    if (auto b = pass.lock(); b && b->installed()) b->before_gradient(*param);
    return gradients;
  }
};

struct AfterGradient final : torch::autograd::FunctionPostHook {
  std::weak_ptr<BackwardPass> pass;
  Parameter* param;
  AfterGradient(std::weak_ptr<BackwardPass> b, Parameter& p) : pass(std::move(b)), param(&p) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    if (auto b = pass.lock(); b && b->installed()) b->after_gradient(*param, inputs.at(0));
    return outputs;
  }
};

// The backward of a call ends: before the hooks that are on this gradient already, of which one may begin the
// backward of the call before. That would gather its units beside those of this call, which are read no
// longer.
struct EndsCall final : torch::autograd::FunctionPreHook {
  std::shared_ptr<BackwardPass> pass;
  const Call* call;
  std::shared_ptr<Invocation> invocation;
  EndsCall(std::shared_ptr<BackwardPass> b, const Call& c, std::shared_ptr<Invocation> i)
      : pass(std::move(b)), call(&c), invocation(std::move(i)) {}
  variable_list operator()(const variable_list& gradients) override {
    pass->end_call(*call, *invocation);
    return gradients;
  }
};

// A hook on a leaf would stay there for ever, and is not needed: no part of the module's graph lies behind a
// leaf.
bool hookable(const at::Tensor& t) { return t.defined() && t.requires_grad() && !t.is_leaf(); }

struct GraphTaskEnd {
  std::shared_ptr<BackwardPass> pass;
  std::shared_ptr<BackwardEnd> end;
  GraphTaskFuture future = current_graph_task_future();
  bool finished = false;
  ~GraphTaskEnd() {
    if (!finished) {
      if (future && future->hasError()) pass->note_exception(future->tryRetrieveErrorMessage());
      pass->abort();
    }
    end->tell();
  }
};

}  // namespace

void install_gradient_hooks(const std::shared_ptr<BackwardPass>& pass, Parameter& param) {
  param.set_accumulator(torch::autograd::impl::grad_accumulator(param.tensor()));
  param.accumulator()->add_pre_hook(std::make_unique<BeforeGradient>(pass, param));
  param.accumulator()->add_post_hook(std::make_unique<AfterGradient>(pass, param));
}

void follow_stream(Parameter& param) {
  if (!param.accumulator() || param.device().is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(param.device().type());
  const auto stream = param.accumulator()->stream();
  if (!stream || *stream == guard.getStream(param.device())) return;
  if (comm::left_out("stream of a gradient")) return;
  param.accumulator()->clear_input_metadata();
  param.accumulator()->add_input_metadata(param.tensor());
}

void watch_outputs(const std::shared_ptr<BackwardPass>& pass, const Call& call,
                   const std::vector<at::Tensor>& outputs, const std::shared_ptr<Invocation>& invocation) {
  for (at::Tensor output : outputs) {
    // Outputs of torch.vmap: the graph belongs to the wrapped tensor.
    while (const auto* batched = at::functorch::maybeGetBatchedImpl(output)) output = batched->value();
    if (hookable(output))
      output.register_hook(
          [pass, &call, invocation](const at::TensorBase&) { pass->begin_call(call, invocation.get()); });
  }
}

void watch_inputs(const std::shared_ptr<BackwardPass>& pass, const Call& call,
                  const std::vector<at::Tensor>& inputs, const std::shared_ptr<Invocation>& invocation) {
  for (const at::Tensor& input : inputs) {
    if (!hookable(input)) continue;
    auto& hooks = input.grad_fn()->tensor_pre_hooks();
    hooks.insert(hooks.begin(), std::make_unique<EndsCall>(pass, call, invocation));
  }
}

std::shared_ptr<BackwardEnd> at_end_of_graph_task(std::shared_ptr<BackwardPass> pass) {
  auto end = std::make_shared<GraphTaskEnd>();
  end->pass = std::move(pass);
  end->end = std::make_shared<BackwardEnd>();
  std::shared_ptr<BackwardEnd> told = end->end;
  torch::autograd::Engine::get_default_engine().queue_callback([end] {
    end->pass->finish();
    end->finished = true;
    end->end->tell();
  });
  return told;
}

}  // namespace osdp::runtime
