// Questions to the backward that is running on this thread.
#pragma once

#include <torch/csrc/autograd/graph_task.h>

namespace osdp::runtime {

// Identifies the running graph task (a backward; re-entrant ones have their own); -1 outside of backward.
inline int current_graph_task() { return torch::autograd::get_current_graph_task_id(); }

// Whether `node` (may be null) belongs to it: of an AccumulateGrad node, whether that gradient will be made.
inline bool in_graph_task(torch::autograd::Node* node) {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  return node && nodes && nodes->contains(node);
}

}  // namespace osdp::runtime
