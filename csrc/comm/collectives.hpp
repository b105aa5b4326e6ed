// The collectives that the runtime uses, over one c10d process group. They block until the result can be used
// on the current stream, and are called from a lane only. With one rank they copy or do nothing. Costs with N
// ranks and S bytes of full tensor (ring): all_gather and reduce_scatter (N-1)(alpha + S/N beta), all_reduce
// twice that.
//
// Note [Sharding on one rank]
// A single rank shards nothing and calls no backend. With OSDP_SHARD_ALONE=1 in the environment it does both,
// as one of several ranks would, so that a machine with one accelerator exercises its backend's collectives
// and all ordering around them. For tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>
#include <vector>

#include "comm/backend_memory.hpp"
#include "comm/early_send.hpp"
#include "comm/lane.hpp"

namespace osdp::comm {

using Tensors = std::vector<at::Tensor>;

bool shards_alone();

class Collectives {
 public:
  // `group` is a name in c10d's registry: process groups are passed from Python by name, since classes of
  // another pybind11 cannot be mixed with torch's. Over gloo the collectives are a ring of our own
  // (ring.cpp), otherwise the backend's. The first call for a group connects its ranks on `lane`: the group's
  // lane, or a separate one if the group is a part of a lane's group (connect_part in the bindings).
  // Collective.
  static std::shared_ptr<Collectives> over(Lane& lane, const std::string& group, at::Device device);
  virtual ~Collectives() = default;

  // The transport: "shared memory", "sockets" (ours), "gloo" (its sockets), or the backend's name.
  virtual std::string transport() const { return backend_->getBackendName(); }
  int64_t rank() const { return backend_->getRank(); }
  int64_t world() const { return backend_->getSize(); }
  // Whether there is no other rank to communicate with; see Note [Sharding on one rank].
  bool alone() const { return world() == 1 && !shards_alone(); }
  // Payload bytes that this rank has sent on its ring so far; 0 for other backends, which do not report it.
  virtual int64_t sent_bytes() const { return 0; }

  // See Note [Memory of the backend]. has_memory: whether the backend provides memory for this device.
  // use_memory: from now on the buffers of reductions are allocated there.
  bool has_memory(c10::Device device) const { return BackendMemory::there_is(*backend_, device); }
  void use_memory() { memory_ = std::make_shared<BackendMemory>(backend_); }
  // Null unless use_memory was called.
  const std::shared_ptr<BackendMemory>& memory() const { return memory_; }
  // Within a task: a flat buffer to reduce or to reduce into. Like Lane::empty.
  at::Tensor empty(int64_t elements, const at::TensorOptions& options) const;

  // outputs[i] (flat, world * n_i elements) is filled with every rank's inputs[i] (flat, n_i), in rank order.
  // All are in flight at once, as one launch if the backend can coalesce.
  void all_gather(const Tensors& outputs, const Tensors& inputs);
  // outputs[i] (flat, n_i) becomes the mean over the ranks of this rank's chunk of inputs[i] (flat, world *
  // n_i), whose contents are overwritten.
  void reduce_scatter_mean(const Tensors& outputs, const Tensors& inputs);
  // In place; flat and contiguous. The result is bitwise equal on every rank.
  void all_reduce_mean(const Tensors& tensors);
  // The early send of a task whose first collective is one of the above, with these tensors as its first
  // inputs.
  virtual EarlySend early_send_of_gather(const Tensors&) const { return {}; }
  virtual EarlySend early_send_of_reduce_scatter(const Tensors&) const { return {}; }
  virtual EarlySend early_send_of_all_reduce(const Tensors&) const { return {}; }
  // In place, contiguous; for a few numbers.
  void all_reduce_sum(const at::Tensor& tensor) {
    if (!alone()) reduce_one(tensor, c10d::ReduceOp::SUM);
  }
  void all_reduce_max(const at::Tensor& tensor) {
    if (!alone()) reduce_one(tensor, c10d::ReduceOp::MAX);
  }
  // Copies rank 0's contents to every rank; any layout.
  void broadcast(const Tensors& tensors);
  // Every rank's text, in rank order, of any length.
  std::vector<std::string> all_texts(const std::string& mine, at::Device device);

 protected:
  explicit Collectives(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  // The implementations; not called if alone().
  virtual void gather(const Tensors& outputs, const Tensors& inputs);
  virtual void reduce_scatter(const Tensors& outputs, const Tensors& inputs);
  virtual void all_reduce(const Tensors& tensors);
  virtual void reduce_one(const at::Tensor& tensor, c10d::ReduceOp::RedOpType operation);
  virtual void send_from_first(const Tensors& bytes);  // flat and contiguous

  // call(0) ... call(count - 1), as one launch where the backend can; waits for all of them.
  template <typename Call>
  void launch(size_t count, Call call);
  // Note [Averages in half].
  bool sums_first(const at::Tensor& tensor) const { return memory_ || tensor.scalar_type() == at::kHalf; }
  c10d::ReduceOp::RedOpType averaging(const at::Tensor& tensor) const {
    return sums_first(tensor) ? c10d::ReduceOp::SUM : c10d::ReduceOp::AVG;
  }
  void divide_sums(const Tensors& tensors) const;  // turns the backend's sums into means
  c10::intrusive_ptr<c10d::Work> launch_reduction(const at::Tensor& tensor,
                                                  c10d::ReduceOp::RedOpType operation);

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::shared_ptr<BackendMemory> memory_;
  std::shared_ptr<faults::Abortable>
      abort_;  // kept for GroupHealth::aborts; null: messages end by themselves
};

}  // namespace osdp::comm
