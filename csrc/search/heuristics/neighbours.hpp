// Changes of a plan: coarse ones in order, and random ones, the same every time and on every machine.
#pragma once

#include <functional>
#include <random>

#include "search/heuristics/rehearsal.hpp"

namespace osdp::search {

class Neighbours {
 public:
  // `rehearsal` must outlive it.
  explicit Neighbours(const Rehearsal& rehearsal);
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  // Changes of a plan that mostly differ in much; false where one changes nothing: all operators, those in
  // one place, half of them, or one of those at either end of the model take another mode in one piece; the
  // first or the last blocks of a kind take another recomputation.
  using Change = std::function<bool(Candidacy&)>;
  const std::vector<Change>& in_order() const { return in_order_; }

  // A random change, after which the plan may be over the limit: an operator, or those in one place of
  // neighbouring blocks, take another option; blocks take another recomputation, or all that another block
  // has; the batch changes; two operators change places. `coarse`: of blocks, all.
  void change(Candidacy& plan, bool coarse);

  // Less memory: one more block is recomputed, or the operators with the largest transient take smaller ones.
  // False where the one tried is not possible.
  bool shrink(Candidacy& plan);
  // One block less is recomputed. False where there is none.
  bool keep_block(Candidacy& plan);

  size_t below(size_t n) { return static_cast<size_t>(dice_() % n); }  // n > 0

 private:
  static constexpr size_t kEnds = 6;  // operators at either end that are changed by themselves
  void list_in_order();
  void add_operators(std::vector<int> operators);
  bool set(Candidacy& plan, const std::vector<int>& operators, Mode mode, bool only_slices) const;

  struct Range {
    size_t first, last;
  };
  Range range(size_t length, bool coarse);
  void set_operators(Candidacy& plan, bool coarse);
  void set_blocks(Candidacy& plan, bool coarse);
  void copy_block(Candidacy& plan, bool coarse);
  bool set_batch(Candidacy& plan);
  void swap(Candidacy& plan);
  bool smaller_transient(Candidacy& plan) const;

  const Rehearsal& rehearsal_;
  std::vector<size_t> options_, whole_;     // by operator; of them, in one piece: these come first
  std::vector<int> open_;                   // operators with several options
  std::vector<std::vector<int>> alike_;     // the same, by kind or, in blocks, by place
  std::vector<std::vector<int>> of_block_;  // operators
  std::vector<const Kind*> recomputed_;     // blocks that may be, in several ways
  std::vector<Change> in_order_;
  std::mt19937_64 dice_{1};  // what it gives is the standard's
};

}  // namespace osdp::search
