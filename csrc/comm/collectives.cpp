#include "comm/collectives.hpp"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "comm/arithmetic.hpp"
#include "comm/c10d.hpp"
#include "comm/coalesced.hpp"
#include "comm/parts.hpp"
#include "comm/ring.hpp"
#include "comm/transports/transports.hpp"
#include "ops/accumulate.hpp"

namespace osdp::comm {
namespace {

// gloo's thread releases a finished Work, and with it the tensors, only some time after it has signalled
// completion (a long time on a busy machine). The next task of the lane may need that memory, so the lane
// waits for the release too.
void wait_until_let_go(const c10::intrusive_ptr<c10d::Work>& work) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  for (int tries = 0; work.use_count() > 1 && std::chrono::steady_clock::now() < give_up; ++tries) {
    if (tries < 100)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void finish(const c10::intrusive_ptr<c10d::Work>& work) {
  if (!work) return;  // with asyncOp = false NCCL launches on the current stream and returns no Work
  work->wait();
  wait_until_let_go(work);
}

// Throws if the lane that runs this task has been interrupted: a wait for the device then ended because of
// the abort, and its result is not valid.
void check_lane() {
  if (const faults::CollectiveTracker* tracker = faults::CollectiveTracker::here()) tracker->check();
}

// A flat tensor's memory. Complex numbers are treated as pairs of reals, which gives the same sums.
Range range_of(const at::Tensor& tensor) {
  const bool complex = tensor.is_complex();
  const int64_t parts = complex ? 2 : 1;
  const at::ScalarType dtype = complex ? c10::toRealValueType(tensor.scalar_type()) : tensor.scalar_type();
  const auto bytes = static_cast<int32_t>(tensor.element_size() / parts);
  return {static_cast<char*>(tensor.mutable_data_ptr()),
          tensor.numel() * parts,
          {bytes, ops::elementwise_dtype(dtype)}};
}

Ranges ranges_of(const Tensors& tensors) {
  Ranges ranges;
  ranges.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) ranges.push_back(range_of(tensor));
  return ranges;
}

// Over gloo, on the CPU: a ring of our own.
class RingCollectives final : public Collectives {
 public:
  RingCollectives(const std::string& group, c10::intrusive_ptr<c10d::Backend> backend)
      : Collectives(backend), ring_(make_ring(group, peers_of(std::move(backend)))) {}

  std::string transport() const override {
    return ring_ ? ring_->transport().name() : backend_->getBackendName();
  }
  int64_t sent_bytes() const override { return ring_ ? ring_->sent_bytes() : 0; }
  EarlySend early_send_of_gather(const Tensors& inputs) const override {
    return ring_ ? keeping(ring_->early_send_of_gather(ranges_of(inputs)), inputs) : EarlySend();
  }
  EarlySend early_send_of_reduce_scatter(const Tensors& inputs) const override {
    return ring_ ? keeping(ring_->early_send_of_reduce_scatter(ranges_of(inputs)), inputs) : EarlySend();
  }
  EarlySend early_send_of_all_reduce(const Tensors& tensors) const override {
    return ring_ ? keeping(ring_->early_send_of_all_reduce(ranges_of(tensors)), tensors) : EarlySend();
  }

 protected:
  void gather(const Tensors& outputs, const Tensors& inputs) override {
    ring_->gather(ranges_of(outputs), ranges_of(inputs));
  }
  void reduce_scatter(const Tensors& outputs, const Tensors& inputs) override {
    ring_->reduce_scatter(ranges_of(outputs), ranges_of(inputs));
  }
  void all_reduce(const Tensors& tensors) override { ring_->all_reduce(ranges_of(tensors)); }
  void send_from_first(const Tensors& bytes) override { ring_->broadcast(ranges_of(bytes)); }
  // For a few numbers. Every rank sums in the same order, so the results are bitwise equal.
  void reduce_one(const at::Tensor& tensor, c10d::ReduceOp::RedOpType operation) override {
    const at::Tensor all = at::empty({world() * tensor.numel()}, tensor.options());
    gather({all}, {tensor.contiguous().view({-1})});
    const at::Tensor rows = all.view({world(), tensor.numel()});
    const at::Tensor result = operation == c10d::ReduceOp::SUM ? rows.sum(0) : rows.amax(0);
    at::Tensor(tensor).copy_(result.view(tensor.sizes()));
  }

 private:
  static std::unique_ptr<Ring> make_ring(const std::string& group, std::shared_ptr<Peers> peers) {
    if (peers->world() < 2) return nullptr;
    std::shared_ptr<Transport> transport = transport_of(group, peers);
    return std::make_unique<Ring>(std::move(transport), std::move(peers), ranks_of_part(group));
  }

  static EarlySend keeping(EarlySend early, const Tensors& tensors) {
    if (early.transport) early.kept = std::make_shared<const Tensors>(tensors);
    return early;
  }

  std::unique_ptr<Ring> ring_;  // null: one rank
};

}  // namespace

bool shards_alone() {
  static const bool asked = [] {
    const char* value = std::getenv("OSDP_SHARD_ALONE");
    return value && std::string_view(value) == "1";
  }();
  return asked;
}

std::shared_ptr<Collectives> Collectives::over(Lane& lane, const std::string& group, at::Device device) {
  auto backend = c10d::resolve_process_group(group)->getBackend(device.type());
  const bool ring = device.is_cpu() && backend->getBackendName() == "gloo";
  if (!ring || (backend->getSize() == 1 && shards_alone())) {
    std::shared_ptr<Collectives> direct(new Collectives(backend));
    direct->abort_ = abortable(std::move(backend));
    lane.health().aborts(direct->abort_);
    return direct;
  }
  std::shared_ptr<Collectives> made;
  const auto make = [&] { made = std::make_shared<RingCollectives>(group, backend); };
  // Tasks are counted in the lane's sequence, so only what all ranks of the lane do alike may be a task.
  if (backend->getSize() < 2 || is_connected(group))
    make();
  else
    lane.submit(faults::task_name("connecting the ranks"), make).wait();
  return made;
}

void Collectives::all_gather(const Tensors& outputs, const Tensors& inputs) {
  if (!alone()) return gather(outputs, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(inputs[i]);
}

void Collectives::reduce_scatter_mean(const Tensors& outputs, const Tensors& inputs) {
  if (!alone()) return reduce_scatter(outputs, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(inputs[i]);
}

void Collectives::all_reduce_mean(const Tensors& tensors) {
  if (!alone()) all_reduce(tensors);
}

template <typename Call>
void Collectives::launch(size_t count, Call call) {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  Coalesced together(*backend_, count);
  for (size_t i = 0; i < count; ++i) works.push_back(call(i));
  works.push_back(together.end());
  for (const auto& work : works) finish(work);
}

void Collectives::gather(const Tensors& outputs, const Tensors& inputs) {
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  launch(outputs.size(), [&](size_t i) {
    at::Tensor output = outputs[i], input = inputs[i];
    return backend_->_allgather_base(output, input, options);
  });
}

at::Tensor Collectives::empty(int64_t elements, const at::TensorOptions& options) const {
  return Lane::empty({elements}, options, memory_.get());
}

// Note [Averages in half]
// NCCL's average multiplies by 1 / W before it sums, in the tensor's dtype: in half, with its small exponent
// range, small gradients would underflow. Gradients arrive here scaled so that their sum does not overflow
// (headroom_of). So they are summed and then divided, as the ring does.
void Collectives::divide_sums(const Tensors& tensors) const {
  Batch batch;
  for (const at::Tensor& tensor : tensors)
    if (sums_first(tensor)) batch.scale(tensor, 1.0 / static_cast<double>(world()));
  batch.run();
}

void Collectives::reduce_scatter(const Tensors& outputs, const Tensors& inputs) {
  c10d::ReduceScatterOptions options;
  options.asyncOp = false;
  launch(outputs.size(), [&](size_t i) {
    at::Tensor output = outputs[i], input = inputs[i];
    options.reduceOp = averaging(input);
    return backend_->_reduce_scatter_base(output, input, options);
  });
  divide_sums(outputs);
}

void Collectives::all_reduce(const Tensors& tensors) {
  launch(tensors.size(), [&](size_t i) { return launch_reduction(tensors[i], averaging(tensors[i])); });
  divide_sums(tensors);
}

void Collectives::reduce_one(const at::Tensor& tensor, c10d::ReduceOp::RedOpType operation) {
  finish(launch_reduction(tensor, operation));
}

c10::intrusive_ptr<c10d::Work> Collectives::launch_reduction(const at::Tensor& tensor,
                                                             c10d::ReduceOp::RedOpType operation) {
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  options.asyncOp = false;
  Tensors one{tensor};
  return backend_->allreduce(one, options);
}

void Collectives::send_from_first(const Tensors& bytes) {
  c10d::BroadcastOptions options;
  options.asyncOp = false;
  launch(bytes.size(), [&](size_t i) {
    Tensors one{bytes[i]};
    return backend_->broadcast(one, options);
  });
}

void Collectives::broadcast(const Tensors& tensors) {
  if (alone()) return;
  // As bytes: backends do not know every dtype.
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const at::Tensor contiguous = tensor.contiguous();
    send_from_first({contiguous.view({-1}).view(at::kByte)});
    if (!contiguous.is_same(tensor)) at::Tensor(tensor).copy_(contiguous);
  }
}

std::vector<std::string> Collectives::all_texts(const std::string& mine, at::Device device) {
  const auto length = static_cast<int64_t>(mine.size());
  at::Tensor lengths = at::empty({world()}, at::TensorOptions(device).dtype(at::kLong));
  all_gather({lengths}, {at::full({1}, length, lengths.options())});
  lengths = lengths.cpu();
  check_lane();
  const int64_t longest = lengths.max().item<int64_t>();
  at::Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.mutable_data_ptr(), mine.data(), mine.size());
  at::Tensor all = at::empty({world() * longest}, padded.options().device(device));
  all_gather({all}, {padded.to(device)});
  all = all.cpu();
  check_lane();
  std::vector<std::string> texts;
  for (int64_t r = 0; r < world(); ++r)
    texts.emplace_back(static_cast<const char*>(all.const_data_ptr()) + r * longest,
                       lengths[r].item<int64_t>());
  return texts;
}

}  // namespace osdp::comm
