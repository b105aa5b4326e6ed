#include "runtime/collectives.hpp"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <thread>

namespace osdp::runtime {
namespace {

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

// gloo's thread lets go of a finished Work, and with it of the tensors, only a moment after it has told so (a
// long one on a busy machine), and by then the next collective may have taken its memory. So the lane waits
// for that too.
void wait_until_let_go(const c10::intrusive_ptr<c10d::Work>& work) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  for (int tries = 0; work.use_count() > 1 && std::chrono::steady_clock::now() < give_up; ++tries) {
    if (tries < 100)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void wait_all(const Works& works) {
  for (const auto& work : works) {
    if (!work) continue;  // with asyncOp = false NCCL launches on the current stream and returns no Work
    work->wait();
    wait_until_let_go(work);
  }
}

}  // namespace

Collectives::Collectives(const std::string& group, at::Device device) {
  auto resolved = c10d::resolve_process_group(group);
  rank_ = resolved->getRank();
  world_ = resolved->getSize();
  backend_ = resolved->getBackend(device.type());
}

Collectives::~Collectives() = default;

void Collectives::all_gather(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) {
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  Works works;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (world_ == 1)
      outputs[i].copy_(inputs[i]);
    else
      works.push_back(backend_->_allgather_base(outputs[i], inputs[i], options));
  }
  wait_all(works);
}

void Collectives::reduce_scatter_mean(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;
  options.asyncOp = false;
  Works works;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (world_ == 1)
      outputs[i].copy_(inputs[i]);
    else
      works.push_back(backend_->_reduce_scatter_base(outputs[i], inputs[i], options));
  }
  wait_all(works);
}

void Collectives::all_reduce(const std::vector<at::Tensor>& tensors, c10d::ReduceOp::RedOpType operation) {
  if (world_ == 1) return;
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  options.asyncOp = false;
  Works works;
  for (const at::Tensor& tensor : tensors) {
    std::vector<at::Tensor> one{tensor};
    works.push_back(backend_->allreduce(one, options));
  }
  wait_all(works);
}

void Collectives::all_reduce_mean(const std::vector<at::Tensor>& tensors) {
  all_reduce(tensors, c10d::ReduceOp::AVG);
}
void Collectives::all_reduce_sum(const at::Tensor& tensor) { all_reduce({tensor}, c10d::ReduceOp::SUM); }
void Collectives::all_reduce_max(const at::Tensor& tensor) { all_reduce({tensor}, c10d::ReduceOp::MAX); }

}  // namespace osdp::runtime
