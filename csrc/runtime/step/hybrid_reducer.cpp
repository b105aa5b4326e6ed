#include "runtime/step/hybrid_reducer.hpp"

#include <utility>

namespace osdp::runtime {

void HybridReducer::make_room() {
  while (waiting_.size() >= kMostWaiting) {
    waiting_.front().settle();
    waiting_.pop_front();
  }
}

void HybridReducer::average(faults::TaskNamePtr name, comm::Tensors rows, bool own_memory,
                            std::function<void()> deliver) {
  comm::EarlySend early = column_->early_send_of_all_reduce(rows);
  const auto task = [column = column_, rows = std::move(rows), deliver = std::move(deliver)] {
    for (const at::Tensor& row : rows) comm::Lane::keep(row);
    column->all_reduce_mean(rows);
    deliver();
  };
  works_.push_back(lane_->submit(std::move(name), task, std::move(early)));
  if (own_memory) waiting_.push_back(works_.back());
}

void HybridReducer::wait_all() {
  for (const comm::Work& work : works_) work.wait();
  works_.clear();
  waiting_.clear();
}

void HybridReducer::forget() noexcept {
  for (const comm::Work& work : works_) work.settle();
  works_.clear();
  waiting_.clear();
}

}  // namespace osdp::runtime
