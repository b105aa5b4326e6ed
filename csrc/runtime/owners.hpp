// Owners: finds the sharded model and the parameter that a tensor belongs to, as the parameter itself or as
// its gradient. For torch's tools, which receive tensors and know nothing of models.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
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

// The sharded parameter of whose rows, or of whose gradient's, the tensor is a view of some (`grad[:2]`);
// null: of none. For tensors without an owner: it looks at every parameter.
const Parameter* part_of(const at::Tensor& tensor);

// Whether the reducer of a DistributedDataParallel waits for the tensor's gradient.
bool has_reducer(const at::Tensor& tensor);

}  // namespace osdp::runtime
