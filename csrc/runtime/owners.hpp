// Owners: finds the sharded model and the parameter that a tensor belongs to, as the parameter itself or as
// its gradient. For torch's tools, which receive tensors and know nothing of models.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

namespace osdp::runtime {

class Parameter;
class Runtime;

// `runtime` is null where the tensor belongs to no sharded model.
struct Owner {
  std::shared_ptr<Runtime> runtime;
  int64_t param = 0;
  at::Tensor whole;  // the parameter or gradient that the tensor is, or is a view of
};

// Sharded models in the order in which they were sharded, which is the same on all ranks.
std::vector<std::shared_ptr<Runtime>> live_runtimes();
void add_runtime(const std::shared_ptr<Runtime>& runtime);
void remove_runtime(const Runtime& runtime);

// The owner of each tensor. A tensor belongs to a parameter or gradient if it is that tensor, or a view of
// all of its elements (detach(), .data, view(-1), t()). A model whose parameters are summoned owns
// nothing, because they are full on every rank.
std::vector<Owner> owners_of(const std::vector<at::Tensor>& tensors);

// A tensor without an owner (its index) that is a view of some of a sharded parameter's rows, or of its
// gradient's (`grad[:2]`), and that parameter; null: there is none. `owners`: of the tensors.
std::pair<size_t, const Parameter*> find_part(const std::vector<at::Tensor>& tensors,
                                              const std::vector<Owner>& owners);

// Whether the reducer of a DistributedDataParallel waits for the tensor's gradient.
bool has_reducer(const at::Tensor& tensor);

}  // namespace osdp::runtime
