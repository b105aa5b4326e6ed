// Order: the sequence in which units are asked for, recorded in one pass and used to prefetch in the next.
//
// The sequence follows from the model's code, which all ranks run alike, so every rank prefetches the same
// unit at the same point. Where this pass leaves the recorded path (a branch), nothing is prefetched until it
// is back on it.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

namespace osdp::runtime {

struct Unit;

class Order {
 public:
  void begin() {
    current_.clear();
    position_ = 0;
  }

  // Notes that `unit` is asked for; returns the units recorded after it, at most `depth`.
  std::span<Unit* const> advance(Unit* unit, size_t depth) {
    current_.push_back(unit);
    auto found = std::find(recorded_.begin() + static_cast<std::ptrdiff_t>(position_), recorded_.end(), unit);
    if (found == recorded_.end()) return {};
    position_ = static_cast<size_t>(found - recorded_.begin()) + 1;
    return std::span(recorded_).subspan(position_, std::min(depth, recorded_.size() - position_));
  }

  // The pass is complete. A pass that was cut short by an exception is not recorded.
  void end() { recorded_.swap(current_); }

  // Whether `unit` was just asked for and is the last one of the recorded pass.
  bool ends_with(const Unit* unit) const {
    return !recorded_.empty() && position_ == recorded_.size() && recorded_.back() == unit;
  }

 private:
  std::vector<Unit*> recorded_;
  std::vector<Unit*> current_;
  size_t position_ = 0;
};

}  // namespace osdp::runtime
