// HybridReducer: the second half of HYBRID_SHARD's reductions, over the ranks that hold the same rows in
// every line.
//
// Note [Two lanes]
// A HYBRID_SHARD gradient is reduce-scattered inside its line and then all-reduced over its column: fast
// links first, slow ones then. On one lane the slow ones would rest while the next unit is gathered inside
// the host, and the gathers wait for the slow ones. So a model with such units has a second lane, with a
// thread or stream of its own, for all that travels over columns. A task of the first lane that has made its
// rows submits their all-reduce to the second as its last act: so all ranks submit in the same order there
// too, and the rows are ready when they are submitted, which makes the first messages an early send (Note
// [Sent ahead]). The full gradient is let go of when the first half ends. What waits for its all-reduce is
// this rank's rows, which become its gradient; where it has one already (a second micro-batch), or keeps it
// in a narrower dtype, they are memory of their own: then at most kMostWaiting units' rows exist, and the
// first lane waits before it makes more. The second lane never waits for the first, so that wait ends. Both
// lanes end together, with one error (GroupHealth).
//   On accelerators the second stream waits for the first where a task of that submits, and the rows are kept
// until the stream that trains has waited for the second: their memory is its own, so it is that one which
// waits where rows are memory of their own (make_room), and for both at the end of a backward.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/lane.hpp"

namespace osdp::runtime {

class HybridReducer {
 public:
  static constexpr size_t kMostWaiting = 2;

  // `lane`: the second one, see Lane::beside.
  HybridReducer(std::shared_ptr<Lane> lane, std::shared_ptr<Collectives> column)
      : lane_(std::move(lane)), column_(std::move(column)) {}

  Lane& lane() const { return *lane_; }
  const std::shared_ptr<Lane>& shared_lane() const { return lane_; }

  // Before rows are made that are memory of their own: within the task of the first lane that makes them, or,
  // where lanes only enqueue, before it is submitted.
  void make_room();

  // --- within tasks of the first lane
  // `rows`, flat: the line's means, which become the means over all ranks; then `deliver` puts them where
  // they belong. `own_memory`: as above.
  void average(TaskNamePtr name, Tensors rows, bool own_memory, std::function<void()> deliver);

  // --- the thread that computes, once the first lane's tasks of this backward have ended
  void wait_all();  // throws what a task threw
  void forget() noexcept;

 private:
  std::shared_ptr<Lane> lane_;
  std::shared_ptr<Collectives> column_;
  std::vector<Work> works_;   // of this backward
  std::deque<Work> waiting_;  // of those, the ones with memory of their own
};

}  // namespace osdp::runtime
