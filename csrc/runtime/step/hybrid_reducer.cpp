#include "runtime/step/hybrid_reducer.hpp"

#include <utility>

namespace osdp::runtime {

void HybridReducer::make_room() {
  while (waiting_.size() >= kMostWaiting) {
    waiting_.front().settle();
    waiting_.pop_front();
  }
}

void HybridReducer::average(faults::TaskNamePtr name, comm::Tensors rows, comm::Tensors of_line,
                            bool own_memory, std::function<void()> deliver) {
  comm::EarlySend early = of_line.empty() ? column_->early_send_of_all_reduce(rows)
                                          : column_->early_send_of_reduce_scatter(of_line);
  auto task = [column = column_, rows = std::move(rows), of_line = std::move(of_line),
               deliver = std::move(deliver)] {
    for (const comm::Tensors* used : {&rows, &of_line})
      for (const at::Tensor& each : *used) comm::Lane::keep(each);
    if (of_line.empty())
      column->all_reduce_mean(rows);
    else
      column->reduce_scatter_mean(rows, of_line);
    deliver();
  };
  works_.push_back(lane_->submit(std::move(name), std::move(task), std::move(early)));
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
