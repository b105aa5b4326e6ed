// The few collectives the runtime uses, over one c10d process group, blocking until the result can be used on
// the current stream. Called from the lane only. With one rank they copy or do nothing. Costs, N ranks, S
// bytes of full tensor (ring): all_gather and reduce_scatter (N-1)(alpha + S/N beta), all_reduce twice that.
//
// Note [Sharding on one rank]
// One rank has nothing to shard, and calls no backend. With OSDP_SHARD_ALONE=1 in the environment it does
// both, as one of several would: so that a machine with one accelerator runs its backend's collectives and
// everything that is ordered around them. For tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>
#include <vector>

#include "comm/backend_memory.hpp"
#include "comm/early_send.hpp"
#include "comm/lane.hpp"

namespace osdp::runtime {

using Tensors = std::vector<at::Tensor>;

bool shards_alone();

class Collectives {
 public:
  // `group` is a name known to c10d's registry: process groups cross from Python by name, since another
  // pybind11's classes do not mix with torch's. Over gloo a ring of our own (ring.cpp), over others the
  // backend's. Its first one connects the ranks, on `lane`: the group's, or one apart where the group is a
  // part of a lane's (connect_part in the bindings). Collective.
  static std::shared_ptr<Collectives> over(Lane& lane, const std::string& group, at::Device device);
  virtual ~Collectives() = default;

  // What carries the bytes: "shared memory", "sockets" (ours), "gloo" (its sockets), or the backend's name.
  virtual std::string transport() const { return backend_->getBackendName(); }
  int64_t rank() const { return backend_->getRank(); }
  int64_t world() const { return backend_->getSize(); }
  // Whether there is nobody to communicate with; see Note [Sharding on one rank].
  bool alone() const { return world() == 1 && !shards_alone(); }
  // Payload that this rank has sent round its ring so far; of other backends nothing is known.
  virtual int64_t sent_bytes() const { return 0; }

  // Note [Memory of the backend]: whether there is any for this device; from here on, what is reduced lies
  // there.
  bool has_memory(c10::Device device) const { return BackendMemory::there_is(*backend_, device); }
  void use_memory() { memory_ = std::make_shared<BackendMemory>(backend_); }
  // Null unless it is used.
  const std::shared_ptr<BackendMemory>& memory() const { return memory_; }
  // Within a task: what it reduces, or into; flat. As Lane::empty.
  at::Tensor empty(int64_t elements, const at::TensorOptions& options) const;

  // outputs[i] (flat, world * n_i elements) is filled with every rank's inputs[i] (flat, n_i), in rank order.
  // All in flight together; one launch of a backend that can coalesce.
  void all_gather(const Tensors& outputs, const Tensors& inputs);
  // outputs[i] (flat, n_i) becomes the mean over the ranks of this rank's chunk of inputs[i] (flat, world *
  // n_i), whose contents are lost.
  void reduce_scatter_mean(const Tensors& outputs, const Tensors& inputs);
  // In place, flat and contiguous. Bit for bit the same on every rank.
  void all_reduce_mean(const Tensors& tensors);
  // For a task whose first collective is one of the above, with these inputs first: what it sends first.
  virtual EarlySend early_send_of_gather(const Tensors&) const { return {}; }
  virtual EarlySend early_send_of_reduce_scatter(const Tensors&) const { return {}; }
  virtual EarlySend early_send_of_all_reduce(const Tensors&) const { return {}; }
  // In place, contiguous; of a few numbers.
  void all_reduce_sum(const at::Tensor& tensor) {
    if (!alone()) reduce_one(tensor, c10d::ReduceOp::SUM);
  }
  void all_reduce_max(const at::Tensor& tensor) {
    if (!alone()) reduce_one(tensor, c10d::ReduceOp::MAX);
  }
  // Rank 0's contents to every rank; any layout.
  void broadcast(const Tensors& tensors);
  // Every rank's text, in rank order, of any length.
  std::vector<std::string> all_texts(const std::string& mine, at::Device device);

 protected:
  explicit Collectives(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  // Where it is not alone.
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
  void divide_sums(const Tensors& tensors) const;  // of those that the backend summed, for their mean
  c10::intrusive_ptr<c10d::Work> launch_reduction(const at::Tensor& tensor,
                                                  c10d::ReduceOp::RedOpType operation);

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::shared_ptr<BackendMemory> memory_;
  std::shared_ptr<Abortable> abort_;  // kept for GroupHealth::aborts; null: messages end by themselves
};

}  // namespace osdp::runtime
