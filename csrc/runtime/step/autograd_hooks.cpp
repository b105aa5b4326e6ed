#include "runtime/step/autograd_hooks.hpp"

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <unordered_set>

#include "comm/left_out.hpp"
#include "runtime/step/backward.hpp"
#include "runtime/step/graph_task.hpp"

namespace osdp::runtime {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

constexpr uint64_t kLeaf = std::numeric_limits<uint64_t>::max();  // sequence number of AccumulateGrad nodes

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

struct EndsCall final : torch::autograd::FunctionPostHook {
  std::shared_ptr<BackwardPass> pass;
  const Call* call;
  std::shared_ptr<Invocation> invocation;
  EndsCall(std::shared_ptr<BackwardPass> b, const Call& c, std::shared_ptr<Invocation> i)
      : pass(std::move(b)), call(&c), invocation(std::move(i)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    pass->node_has_run(*call, *invocation);
    return outputs;
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

// Note [Outputs that are written to]
// A linear of [batch, length, width] returns a view of its product. If something is written to it later
// (ReLU(inplace=True), y *= 2), autograd makes its node anew, from the tensor that it is a view of, and hooks
// on the former node are never called. The node of that tensor stays in the graph. So where the call has made
// that tensor, which the call's views of it come from, it is hooked instead.
void watch_outputs(const std::shared_ptr<BackwardPass>& pass, const Call& call,
                   const std::vector<at::Tensor>& outputs, uint64_t first_node,
                   const std::shared_ptr<Invocation>& invocation) {
  const uint64_t thread = at::RecordFunction::currentThreadId();
  const auto made_here = [&](const at::TensorBase& t) {
    if (!t.requires_grad() || t.is_leaf()) return false;
    const auto node = t.grad_fn();
    return node->sequence_nr() >= first_node && node->thread_id() == thread;
  };
  std::unordered_set<const void*> hooked;
  for (const at::Tensor& output : outputs) {
    if (!hookable(output)) continue;
    const at::TensorBase& base = output.is_view() ? output._base() : output;
    const at::TensorBase& made = made_here(base) ? base : output;
    if (hooked.insert(made.unsafeGetTensorImpl()).second)
      made.register_hook(
          [pass, &call, invocation](const at::TensorBase&) { pass->begin_call(call, invocation.get()); });
  }
}

void watch_end(const std::shared_ptr<BackwardPass>& pass, const Call& call,
               const std::vector<at::Tensor>& outputs, const std::shared_ptr<Invocation>& invocation) {
  const uint64_t thread = at::RecordFunction::currentThreadId();  // each has sequence numbers of its own
  const auto inside = [&](const Node* node) {
    return node && node->sequence_nr() >= invocation->first && node->sequence_nr() != kLeaf &&
           node->thread_id() == thread;
  };
  std::unordered_set<Node*> found;
  std::vector<Node*> open;
  const auto reach = [&](Node* node) {
    if (inside(node) && found.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& output : outputs)
    if (hookable(output)) reach(output.grad_fn().get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    bool leaves = false;
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      leaves |= edge.is_valid() && !inside(edge.function.get());
      reach(edge.function.get());
    }
    if (!leaves) continue;
    invocation->last.push_back(node);
    node->add_post_hook(std::make_unique<EndsCall>(pass, call, invocation));
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
