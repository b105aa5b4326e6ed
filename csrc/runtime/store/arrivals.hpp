// Arrivals: counts how many of the gradients that a graph task produces for a unit or a bucket have been
// accumulated so far.
#pragma once

#include <cstdint>

namespace osdp::runtime {

class Arrivals {
 public:
  // Counts one more gradient of the running graph task. `expected()` returns how many gradients the task will
  // produce; it is called once per task. Returns whether all of them have arrived.
  template <typename Expected>
  bool add(int64_t task, Expected expected) {
    if (task_ != task) {
      task_ = task;
      arrived_ = 0;
      expected_ = expected();
    }
    return ++arrived_ >= expected_;
  }
  bool incomplete(int64_t task) const { return task_ == task && arrived_ < expected_; }
  void forget() { task_ = -1; }

 private:
  int64_t task_ = -1;  // -1: none
  int64_t expected_ = 0, arrived_ = 0;
};

}  // namespace osdp::runtime
