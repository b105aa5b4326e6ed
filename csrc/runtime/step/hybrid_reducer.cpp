#include "runtime/step/hybrid_reducer.hpp"

#include <utility>

namespace osdp::runtime {

void Columns::make_room() {
  while (waiting_.size() >= kMostWaiting) {
    waiting_.front().settle();
    waiting_.pop_front();
  }
}

void Columns::average(TaskNamePtr name, Tensors rows, bool own_memory, std::function<void()> deliver) {
  Head head = column_->head_of_all_reduce(rows);
  const auto task = [column = column_, rows = std::move(rows), deliver = std::move(deliver)] {
    for (const at::Tensor& row : rows) Lane::keep(row);
    column->all_reduce_mean(rows);
    deliver();
  };
  tickets_.push_back(lane_->submit(std::move(name), task, std::move(head)));
  if (own_memory) waiting_.push_back(tickets_.back());
}

void Columns::wait_all() {
  for (const Ticket& ticket : tickets_) ticket.wait();
  tickets_.clear();
  waiting_.clear();
}

void Columns::forget() noexcept {
  for (const Ticket& ticket : tickets_) ticket.settle();
  tickets_.clear();
  waiting_.clear();
}

}  // namespace osdp::runtime
