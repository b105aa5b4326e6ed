// Moves for the local search: coarse ones in a fixed order, and random ones that are reproducible on every
// machine.
#pragma once

#include <functional>
#include <random>

#include "search/heuristics/plan_evaluator.hpp"

namespace osdp::search {

class Neighbours {
 public:
  // `evaluator` must outlive it.
  explicit Neighbours(const PlanEvaluator& evaluator);
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  // Coarse moves; each returns false if it changes nothing. Units are gathered further ahead, or less far;
  // all operators, those at one position of the blocks, half of those, or a single one near either end of the
  // model take another mode, unsplit, or but for all operators FULL_SHARD in slices; the first or the last
  // blocks of a class take another recomputation.
  using Change = std::function<bool(IndexedPlan&)>;
  const std::vector<Change>& in_order() const { return in_order_; }

  // A random move, after which the plan may exceed the limit: an operator, or those at one position of
  // neighbouring blocks, take another option; a few neighbours take one mode; blocks take another
  // recomputation, or copy another block entirely; the batch changes, or how far ahead units are gathered;
  // two operators swap their options. `coarse`: moves of blocks apply to all of them.
  void change(IndexedPlan& plan, bool coarse);

  // Reduces memory: one more block is recomputed, or the operators with the largest transient take options
  // with smaller ones. False if the move that was drawn is not possible.
  bool shrink(IndexedPlan& plan);
  // Stops recomputing one block. False if there is none to stop.
  bool keep_block(IndexedPlan& plan);

  size_t below(size_t n) { return static_cast<size_t>(dice_() % n); }  // n > 0

 private:
  static constexpr size_t kEnds = 6;  // operators at either end with moves of their own
  void list_in_order();
  void add_operators(std::vector<int> operators);
  bool set(IndexedPlan& plan, const std::vector<int>& operators, Mode mode, int64_t slices,
           bool only_slices) const;

  struct Range {
    size_t first, last;
  };
  Range range(size_t length, bool coarse);
  void set_operators(IndexedPlan& plan, bool coarse);
  void set_run(IndexedPlan& plan);  // neighbours in execution order, which may then share a unit
  void set_blocks(IndexedPlan& plan, bool coarse);
  void copy_block(IndexedPlan& plan, bool coarse);
  bool set_batch(IndexedPlan& plan);
  bool set_prefetch(IndexedPlan& plan);
  void swap(IndexedPlan& plan);
  bool smaller_transient(IndexedPlan& plan) const;

  const PlanEvaluator& evaluator_;
  std::vector<size_t> options_, whole_;              // by operator; unsplit ones, which come first
  std::vector<int> open_;                            // operators with several options
  std::vector<std::vector<int>> alike_;              // the same, grouped by class or, in blocks, by position
  std::vector<std::vector<int>> of_block_;           // operators
  std::vector<const EquivalenceClass*> recomputed_;  // classes of blocks with several allowed ways
  std::vector<Change> in_order_;
  std::mt19937_64 dice_{1};  // its sequence is specified by the C++ standard
};

}  // namespace osdp::search
