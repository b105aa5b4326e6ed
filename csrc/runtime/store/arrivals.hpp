// Arrivals: how many of the gradients that a graph task makes for a unit or a bucket have come.
#pragma once

#include <cstdint>

namespace osdp::runtime {

class Arrivals {
 public:
  // One more, of the running graph task. `expected()` counts those that the task makes; it is asked once per
  // task. Whether all of them are there.
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
