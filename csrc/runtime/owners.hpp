// Owners: which parameter of which sharded model a tensor is, or is the gradient of. For torch's tools, which
// are given tensors and know nothing of models.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace osdp::runtime {

class Runtime;

// `runtime` is null where the tensor belongs to no sharded model.
struct Owner {
  std::shared_ptr<Runtime> runtime;
  int64_t param = 0;
};

// Sharded models in the order in which they were sharded, which is the same on all ranks.
std::vector<std::shared_ptr<Runtime>> live_runtimes();
void add_runtime(const std::shared_ptr<Runtime>& runtime);
void remove_runtime(const Runtime& runtime);

// Of each tensor. It is a parameter's or gradient's if it is that tensor, or a view of all of its memory in
// its shape (detach(), .data). A model whose parameters are summoned owns nothing: they are full on every
// rank.
std::vector<Owner> owners_of(const std::vector<at::Tensor>& tensors);

}  // namespace osdp::runtime
