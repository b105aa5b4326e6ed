// The memory of all phases of a plan while options of single operators change. Phases are in blocks of
// kBlock: adding to a range of phases, or asking whether one before or after some phase is above a limit,
// looks at the blocks and at one block's phases, not at all of them.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "search/problem/problem.hpp"

namespace osdp::search {

class PhaseMaxima {
 public:
  explicit PhaseMaxima(std::vector<int64_t> phases)
      : phases_(std::move(phases)), blocks_((phases_.size() + kBlock - 1) / kBlock) {
    for (size_t b = 0; b < blocks_.size(); ++b) set_largest(b);
  }

  size_t size() const { return phases_.size(); }
  int64_t at(size_t phase) const { return phases_[phase] + blocks_[phase / kBlock].added; }

  void add(size_t first, size_t end, int64_t bytes) {
    if (bytes == 0) return;
    changed_ = true;
    for (size_t from = first; from < end;) {
      const size_t b = from / kBlock, to = std::min(end_of(b), end);
      if (from == b * kBlock && to == end_of(b)) {
        blocks_[b].added += bytes, blocks_[b].largest += bytes;
      } else {
        for (size_t j = from; j < to; ++j) phases_[j] += bytes;
        set_largest(b);
      }
      from = to;
    }
  }

  // Whether a phase before this one is above `most`.
  bool before_exceeds(size_t phase, int64_t most) {
    if (phase == 0) return false;
    update();
    const size_t b = (phase - 1) / kBlock;
    if (b > 0 && blocks_[b - 1].up_to > most) return true;
    return blocks_[b].largest > most && largest(b, b * kBlock, phase) > most;
  }
  // Whether this phase or one after it is.
  bool from_exceeds(size_t phase, int64_t most) {
    update();
    const size_t b = phase / kBlock;
    if (b + 1 < blocks_.size() && blocks_[b + 1].from > most) return true;
    return blocks_[b].largest > most && largest(b, phase, end_of(b)) > most;
  }

  // The first phase that is largest.
  size_t largest_phase() const {
    size_t b = 0;
    for (size_t c = 1; c < blocks_.size(); ++c)
      if (blocks_[c].largest > blocks_[b].largest) b = c;
    const auto in = phases_.begin();
    return static_cast<size_t>(std::max_element(in + static_cast<std::ptrdiff_t>(b * kBlock),
                                                in + static_cast<std::ptrdiff_t>(end_of(b))) -
                               in);
  }

 private:
  static constexpr size_t kBlock = 32;
  struct Block {
    int64_t added = 0;            // to each of its phases
    int64_t largest = 0;          // of its phases
    int64_t up_to = 0, from = 0;  // of all phases up to its end, and from its begin on
  };

  size_t end_of(size_t block) const { return std::min((block + 1) * kBlock, phases_.size()); }
  int64_t largest(size_t block, size_t first, size_t end) const {
    return blocks_[block].added + *std::max_element(phases_.data() + first, phases_.data() + end);
  }
  void set_largest(size_t b) { blocks_[b].largest = largest(b, b * kBlock, end_of(b)); }
  void update() {
    if (!std::exchange(changed_, false)) return;
    int64_t most = -kLargestSum;
    for (Block& b : blocks_) b.up_to = most = std::max(most, b.largest);
    most = -kLargestSum;
    for (size_t b = blocks_.size(); b-- > 0;) blocks_[b].from = most = std::max(most, blocks_[b].largest);
  }

  std::vector<int64_t> phases_;  // without what was added to their blocks
  std::vector<Block> blocks_;
  bool changed_ = true;  // `up_to` and `from` are of before
};

}  // namespace osdp::search
