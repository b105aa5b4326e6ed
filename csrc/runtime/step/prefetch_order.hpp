// PrefetchOrder: the sequence in which units are used, recorded in one pass and used to prefetch in the next.
//
// The sequence follows from the model's code, which all ranks run alike, so every rank prefetches the same
// unit at the same point. If a pass leaves the recorded sequence (a branch), nothing is prefetched until it
// returns to it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/store/unit.hpp"

namespace osdp::runtime {

// Note [How far ahead]
// The unit in use and the units gathered ahead of it share a budget: of `1 + units` units of the largest
// size, or fewer bytes if a plan says so, whose limit leaves no more. The unit in use is gathered in any
// case. If units are smaller, more of them are prefetched: a small unit arrives long before the computation
// of the unit in use ends, and the link would be idle. The bound of 2 + `units` full-size tensors still
// holds: a gather begins only after the reductions submitted before it have finished, so gradients that are
// being reduced while it waits belong to units that were counted in the budget, and beside these there is
// only the gradient being computed. At most kMostUnits are prefetched, since every use iterates over all of
// them. If all units are SHARD_GRAD_OP, a forward keeps everything that it gathers for its backward:
// prefetching early needs no memory beyond that at the forward's end, so kMostUnits is the only limit. The
// link then never waits for a rank whose computation is late.
struct Depth {
  static constexpr size_t kMostUnits = 16;
  static constexpr size_t kNoLimit = SIZE_MAX;
  size_t units = 1;
  size_t bytes = 0;  // the budget

  size_t of(size_t in_use_bytes, std::span<Unit* const> next) const {
    size_t count = 0, sum = in_use_bytes;
    for (; count < std::min(next.size(), std::max(units, kMostUnits)); ++count) {
      sum += next[count]->bytes();
      if (sum > bytes) break;
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

  // Records that `unit` is used; returns the units recorded after it that should be prefetched.
  std::span<Unit* const> advance(Unit* unit, const Depth& depth) {
    // A unit of several modules is used by each of them in turn.
    if (current_.empty() || current_.back() != unit) current_.push_back(unit);
    if (position_ > 0 && recorded_[position_ - 1] == unit) --position_;
    auto found = std::find(recorded_.begin() + static_cast<std::ptrdiff_t>(position_), recorded_.end(), unit);
    if (found == recorded_.end()) return {};
    position_ = static_cast<size_t>(found - recorded_.begin()) + 1;
    const auto next = std::span(recorded_).subspan(position_);
    return next.first(depth.units > 0 ? depth.of(unit->bytes(), next) : 0);
  }

  // The pass is complete. Not called after an exception, so that a partial pass is never recorded.
  void end() { recorded_.swap(current_); }

  // Whether `unit` was used last and is the last one of the recorded pass.
  bool ends_with(const Unit* unit) const {
    return !recorded_.empty() && position_ == recorded_.size() && recorded_.back() == unit;
  }

 private:
  std::vector<Unit*> recorded_;
  std::vector<Unit*> current_;
  size_t position_ = 0;
};

}  // namespace osdp::runtime
