// HybridReducer: the second half of reductions that begin inside hosts: HYBRID_SHARD's all-reduce over the
// ranks of a column, which hold the same rows; FULL_SHARD_HPZ's reduce-scatter over them.
//
// Note [Two lanes]
// A HYBRID_SHARD gradient is reduce-scattered inside its line, over fast links, and then all-reduced over its
// column, over slow ones. On a single lane the slow links would be idle while the next unit is gathered
// inside the host, and the gathers would wait for the slow links. So a model with such units has a second
// lane, with a thread or stream of its own, for all collectives over columns. A task of the first lane that
// has computed its rows submits their all-reduce to the second lane as its last action. So all ranks submit
// in the same order there too, and the rows are ready on submission, which makes the first messages an early
// send (Note [Sent ahead]). The full gradient is freed when the first half ends. Only this rank's rows wait
// for the all-reduce, and they become its gradient. If the rank has a gradient already (a second
// micro-batch), or keeps it in a narrower dtype, the rows need separate memory: then the rows of at most
// kMostWaiting units exist, and the first lane waits before it computes more. The second lane never waits for
// the first, so this cannot deadlock. If one lane fails, both end with the same error (GroupHealth).
//
// On accelerators the second stream waits for the first at the point where a task of the first submits, and
// the rows are kept until the computing stream has waited for the second, since their memory belongs to the
// computing stream. So it is the computing stream that waits in make_room, and that waits for both lanes at
// the end of a backward.
//
// Of a reduce-scatter the line's means always wait in separate memory, S/R bytes, of which each rank of the
// column keeps its part.
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

  // `lane`: the second lane, see Lane::beside.
  HybridReducer(std::shared_ptr<comm::Lane> lane, std::shared_ptr<comm::Collectives> column)
      : lane_(std::move(lane)), column_(std::move(column)) {}

  comm::Lane& lane() const { return *lane_; }
  const std::shared_ptr<comm::Lane>& shared_lane() const { return lane_; }

  // Called before rows with separate memory are allocated: within the task of the first lane that computes
  // them, or, if lanes only enqueue work on a stream, before that task is submitted.
  void make_room();

  // --- within tasks of the first lane
  // `rows`, flat, become the means over all ranks; then `deliver` stores them. They are the line's means, or,
  // where `of_line` is not empty, are made of these: of the rows of all ranks of the column, in their order.
  // `own_memory`: there is separate memory, see above.
  void average(faults::TaskNamePtr name, comm::Tensors rows, comm::Tensors of_line, bool own_memory,
               std::function<void()> deliver);

  // --- from the computing thread, once the first lane's tasks of this backward have ended
  void wait_all();  // rethrows a task's exception
  void forget() noexcept;

 private:
  std::shared_ptr<comm::Lane> lane_;
  std::shared_ptr<comm::Collectives> column_;
  std::vector<comm::Work> works_;   // of this backward
  std::deque<comm::Work> waiting_;  // those of them with separate memory
};

}  // namespace osdp::runtime
