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

// Note [What a recomputation uses again]
// A recomputation ends each use of a unit by resharding it, but what is used next is the same unit again
// where it has parameters of several modules, and the slice that it has used last where backward begins with
// it. The unit stays gathered then: gathered once more it would be waited for from begin to end.
class PrefetchOrder {
 public:
  void begin() {
    current_.clear(), current_uses_.clear();
    position_ = 0;
  }

  // Records that `unit` is used, `again` by a recomputation; returns the units recorded after it that should
  // be prefetched.
  std::span<Unit* const> advance(Unit* unit, const Depth& depth, bool again = false) {
    // A unit of several modules is used by each of them in turn.
    if (current_.empty() || current_.back() != unit) current_.push_back(unit), current_uses_.push_back({});
    current_uses_.back().add(again);
    if (position_ > 0 && recorded_[position_ - 1] == unit) --position_;
    auto found = std::find(recorded_.begin() + static_cast<std::ptrdiff_t>(position_), recorded_.end(), unit);
    if (found == recorded_.end()) return {};
    position_ = static_cast<size_t>(found - recorded_.begin()) + 1;
    const auto next = std::span(recorded_).subspan(position_);
    return next.first(depth.units > 0 ? depth.of(unit->bytes(), next) : 0);
  }

  // The pass is complete. Not called after an exception, so that a partial pass is never recorded.
  void end() {
    recorded_.swap(current_);
    recorded_uses_.swap(current_uses_);
  }

  // Whether a recomputation, which has used `unit` last, uses it again next, or backward does if it is a
  // slice. Note [What a recomputation uses again].
  bool again_next(const Unit* unit) const {
    if (position_ == 0 || recorded_[position_ - 1] != unit) return false;
    if (current_.empty() || current_.back() != unit) return false;
    const Uses &now = current_uses_.back(), &all = recorded_uses_[position_ - 1];
    if (now.others) return false;
    return now.again < all.again || (unit->calls.empty() && all.others);
  }

  // Whether `unit` was used last and is the last one of the recorded pass.
  bool ends_with(const Unit* unit) const {
    return !recorded_.empty() && position_ == recorded_.size() && recorded_.back() == unit;
  }

 private:
  // Of one unit, with no other one's between them: by a recomputation before any others; whether there are
  // others.
  struct Uses {
    size_t again = 0;
    bool others = false;
    void add(bool is_again) {
      others |= !is_again;
      again += !others;
    }
  };

  std::vector<Unit*> recorded_, current_;
  std::vector<Uses> recorded_uses_, current_uses_;  // one per unit above
  size_t position_ = 0;
};

}  // namespace osdp::runtime
