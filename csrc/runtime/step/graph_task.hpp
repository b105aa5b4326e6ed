// Queries about the graph task that is running on this thread.
#pragma once

#include <torch/csrc/autograd/graph_task.h>

#include <cstddef>

namespace osdp::runtime {

// Identifies the running graph task (a backward; re-entrant ones have their own); -1 outside of backward.
inline int current_graph_task() { return torch::autograd::get_current_graph_task_id(); }

// Whether `node` (may be null) is part of it: for an AccumulateGrad node, whether its gradient will be
// computed.
inline bool in_graph_task(torch::autograd::Node* node) {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  return node && nodes && nodes->contains(node);
}

// Whether the running graph task captures the gradient that reaches `node` (an input of torch.autograd.grad).
inline bool is_captured(torch::autograd::Node* node) {
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  if (!node || !wanted || wanted->empty()) return false;
  const auto found = wanted->find(node);
  return found != wanted->end() && found->second.captures_ && !found->second.captures_->empty();
}

// The future of the running graph task, which receives its results or its exception; null outside of
// backward.
//
// Note [The exception of a backward]
// The cleanup after a failed backward runs in a destructor, where the exception in flight cannot be accessed.
// The graph task stores it in its future. torch has no function that returns the running thread's graph task,
// only one that returns a pointer to one of its members, from which the task's address is computed.
using GraphTaskFuture = c10::intrusive_ptr<at::ivalue::Future>;
inline GraphTaskFuture current_graph_task_future() {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (!nodes) return {};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr size_t offset = offsetof(torch::autograd::GraphTask, nodes_in_graph_);
#pragma GCC diagnostic pop
  return reinterpret_cast<const torch::autograd::GraphTask*>(reinterpret_cast<const char*>(nodes) - offset)
      ->future_result_;
}

}  // namespace osdp::runtime
