// Questions to the backward that is running on this thread.
#pragma once

#include <torch/csrc/autograd/graph_task.h>

#include <cstddef>

namespace osdp::runtime {

// Identifies the running graph task (a backward; re-entrant ones have their own); -1 outside of backward.
inline int current_graph_task() { return torch::autograd::get_current_graph_task_id(); }

// Whether `node` (may be null) belongs to it: of an AccumulateGrad node, whether that gradient will be made.
inline bool in_graph_task(torch::autograd::Node* node) {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  return node && nodes && nodes->contains(node);
}

// Whether the running graph task hands out what reaches `node` (torch.autograd.grad's inputs).
inline bool is_captured(torch::autograd::Node* node) {
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  if (!node || !wanted || wanted->empty()) return false;
  const auto found = wanted->find(node);
  return found != wanted->end() && found->second.captures_ && !found->second.captures_->empty();
}

// What the running graph task will end with, results or an exception; null outside of backward.
//
// Note [The exception of a backward]
// Whoever cleans up after a failed backward runs in a destructor, where the exception under way cannot be
// asked for. The graph task has it in its future. torch names no way from the running thread to its graph
// task but to one of its members, of which the task's address follows.
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
