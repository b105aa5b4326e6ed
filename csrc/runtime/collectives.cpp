#include "runtime/collectives.hpp"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <thread>

#include "runtime/ring.hpp"

namespace osdp::runtime {
namespace {

// gloo's thread lets go of a finished Work, and with it of the tensors, only a moment after it has told so (a
// long one on a busy machine). What comes next on the lane may count on that memory, so the lane waits for
// that too.
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

}  // namespace

std::shared_ptr<Collectives> Collectives::over(const std::string& group, at::Device device) {
  auto backend = c10d::resolve_process_group(group)->getBackend(device.type());
  if (device.is_cpu() && backend->getBackendName() == "gloo")
    return std::make_shared<Ring>(group, std::move(backend));
  return std::shared_ptr<Collectives>(new Collectives(std::move(backend)));
}

void Collectives::all_gather(const Tensors& outputs, const Tensors& inputs) {
  if (world() > 1) return gather(outputs, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(inputs[i]);
}

void Collectives::reduce_scatter_mean(const Tensors& outputs, const Tensors& inputs) {
  if (world() > 1) return reduce_scatter(outputs, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(inputs[i]);
}

void Collectives::all_reduce_mean(const Tensors& tensors) {
  if (world() > 1) all_reduce(tensors);
}

void Collectives::gather(const Tensors& outputs, const Tensors& inputs) {
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  Works works;
  for (size_t i = 0; i < outputs.size(); ++i) {
    at::Tensor output = outputs[i], input = inputs[i];
    works.push_back(backend_->_allgather_base(output, input, options));
  }
  for (const auto& work : works) finish(work);
}

void Collectives::reduce_scatter(const Tensors& outputs, const Tensors& inputs) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;
  options.asyncOp = false;
  Works works;
  for (size_t i = 0; i < outputs.size(); ++i) {
    at::Tensor output = outputs[i], input = inputs[i];
    works.push_back(backend_->_reduce_scatter_base(output, input, options));
  }
  for (const auto& work : works) finish(work);
}

void Collectives::all_reduce(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) reduce_one(tensor, c10d::ReduceOp::AVG);
}

void Collectives::reduce_one(const at::Tensor& tensor, c10d::ReduceOp::RedOpType operation) {
  if (world() == 1) return;
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  options.asyncOp = false;
  Tensors one{tensor};
  finish(backend_->allreduce(one, options));
}

void Collectives::broadcast(const Tensors& tensors) {
  if (world() == 1) return;
  c10d::BroadcastOptions options;
  options.asyncOp = false;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    at::Tensor contiguous = tensor.contiguous();
    // As bytes: backends do not know every dtype.
    Tensors one{contiguous.view({-1}).view(at::kByte)};
    finish(backend_->broadcast(one, options));
    if (!contiguous.is_same(tensor)) at::Tensor(tensor).copy_(contiguous);
  }
}

}  // namespace osdp::runtime
