#include "runtime/step/autograd_hooks.hpp"

#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "comm/left_out.hpp"
#include "runtime/runtime.hpp"
#include "runtime/step/graph_task.hpp"

namespace osdp::runtime {
namespace {

using torch::autograd::variable_list;

struct BeforeGradient final : torch::autograd::FunctionPreHook {
  std::weak_ptr<Runtime> runtime;
  Parameter* param;
  BeforeGradient(Runtime& r, Parameter& p) : runtime(r.weak_from_this()), param(&p) {}
  variable_list operator()(const variable_list& gradients) override {
    if (auto r = runtime.lock(); r && r->installed()) r->before_gradient(*param);
    return gradients;
  }
};

struct AfterGradient final : torch::autograd::FunctionPostHook {
  std::weak_ptr<Runtime> runtime;
  Parameter* param;
  AfterGradient(Runtime& r, Parameter& p) : runtime(r.weak_from_this()), param(&p) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    if (auto r = runtime.lock(); r && r->installed()) r->after_gradient(*param, inputs.at(0));
    return outputs;
  }
};

// A hook on a leaf would stay on it for ever; leaves need none: nothing of the module lies behind them.
bool hookable(const at::Tensor& t) { return t.defined() && t.requires_grad() && !t.is_leaf(); }

struct GraphTaskEnd {
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<BackwardEnd> end;
  GraphTaskFuture future = current_graph_task_future();
  bool finished = false;
  ~GraphTaskEnd() {
    if (!finished) {
      if (future && future->hasError()) runtime->note_exception(future->tryRetrieveErrorMessage());
      runtime->abort();
    }
    end->tell();
  }
};

}  // namespace

void install_gradient_hooks(Runtime& runtime, Parameter& param) {
  param.accumulator = torch::autograd::impl::grad_accumulator(param.tensor());
  param.accumulator->add_pre_hook(std::make_unique<BeforeGradient>(runtime, param));
  param.accumulator->add_post_hook(std::make_unique<AfterGradient>(runtime, param));
}

void follow_stream(Parameter& param) {
  if (!param.accumulator || param.device().is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(param.device().type());
  const auto stream = param.accumulator->stream();
  if (!stream || *stream == guard.getStream(param.device())) return;
  if (left_out("stream of a gradient")) return;
  param.accumulator->clear_input_metadata();
  param.accumulator->add_input_metadata(param.tensor());
}

void watch_outputs(Runtime& runtime, const Call& call, const std::vector<at::Tensor>& outputs,
                   const std::shared_ptr<Invocation>& invocation) {
  for (at::Tensor output : outputs) {
    // What torch.vmap made: its graph is that of the tensor inside.
    while (const auto* batched = at::functorch::maybeGetBatchedImpl(output)) output = batched->value();
    if (hookable(output))
      output.register_hook([runtime = runtime.shared_from_this(), &call, invocation](const at::TensorBase&) {
        runtime->begin_call_backward(call, invocation.get());
      });
  }
}

void watch_inputs(Runtime& runtime, const Call& call, const std::vector<at::Tensor>& inputs,
                  const std::shared_ptr<Invocation>& invocation) {
  for (const at::Tensor& input : inputs)
    if (hookable(input))
      input.register_hook([runtime = runtime.shared_from_this(), &call, invocation](const at::TensorBase&) {
        runtime->end_call_backward(call, *invocation);
      });
}

std::shared_ptr<BackwardEnd> at_end_of_graph_task(Runtime& runtime) {
  auto end = std::make_shared<GraphTaskEnd>();
  end->runtime = runtime.shared_from_this();
  end->end = std::make_shared<BackwardEnd>();
  std::shared_ptr<BackwardEnd> told = end->end;
  torch::autograd::Engine::get_default_engine().queue_callback([end] {
    end->runtime->finish_backward();
    end->finished = true;
    end->end->tell();
  });
  return told;
}

}  // namespace osdp::runtime
