// PrefetchOrder: the sequence in which units are asked for, recorded in one pass and used to prefetch in the
// next.
//
// The sequence follows from the model's code, which all ranks run alike, so every rank prefetches the same
// unit at the same point. Where this pass leaves the recorded path (a branch), nothing is prefetched until it
// is back on it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/store/unit.hpp"

namespace osdp::runtime {

// Note [How far ahead]
// The unit in use and what is gathered ahead of it have the memory of `1 + units` units of the largest size.
// Where they are smaller, more of them come: a small unit's bytes arrive long before the computation of the
// one in use ends, and the link would rest. The bound of 2 + `units` full-size tensors holds: a gather begins
// when the gradients submitted before it have left, so those that leave while it waits are of units that were
// in this sum, and beside it there is only the gradient being made. At most kMostUnits come, since every use
// looks at all of them. Where all units are SHARD_GRAD_OP, a forward keeps everything that it gathers for its
// backward: what comes early takes no memory that the forward's end does not take, and kMostUnits alone is
// the limit. The link then never waits for a rank that computes late.
struct Depth {
  static constexpr size_t kMostUnits = 16;
  static constexpr size_t kNoLimit = SIZE_MAX;
  size_t units = 1;
  size_t bytes = 0;  // of 1 + `units` units of the largest size

  size_t of(size_t in_use_bytes, std::span<Unit* const> next) const {
    size_t count = 0, sum = in_use_bytes;
    for (; count < std::min(next.size(), std::max(units, kMostUnits)); ++count) {
      sum += next[count]->bytes();
      if (count >= units && sum > bytes) break;
    }
    return count;
  }
};

class PrefetchOrder {
 public:
  void begin() {
    current_.clear();
    position_ = 0;
  }

  // Notes that `unit` is asked for; returns the units recorded after it that are to be gathered ahead.
  std::span<Unit* const> advance(Unit* unit, const Depth& depth) {
    // A unit of several modules is asked for by each of them.
    if (current_.empty() || current_.back() != unit) current_.push_back(unit);
    if (position_ > 0 && recorded_[position_ - 1] == unit) --position_;
    auto found = std::find(recorded_.begin() + static_cast<std::ptrdiff_t>(position_), recorded_.end(), unit);
    if (found == recorded_.end()) return {};
    position_ = static_cast<size_t>(found - recorded_.begin()) + 1;
    const auto next = std::span(recorded_).subspan(position_);
    return next.first(depth.units > 0 ? depth.of(unit->bytes(), next) : 0);
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
