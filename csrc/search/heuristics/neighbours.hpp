// Moves for the local search: coarse ones in a fixed order, and random ones that are reproducible on every
// machine.
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

  // Coarse moves; each returns false if it changes nothing. All operators, those at one position of the
  // blocks, half of those, or a single one near either end of the model take another mode, unsplit; the first
  // or the last blocks of a kind take another recomputation.
  using Change = std::function<bool(Candidacy&)>;
  const std::vector<Change>& in_order() const { return in_order_; }

  // A random move, after which the plan may exceed the limit: an operator, or those at one position of
  // neighbouring blocks, take another option; a few neighbours take one mode; blocks take another
  // recomputation, or copy another block entirely; the batch changes; two operators swap their options.
  // `coarse`: moves of blocks apply to all of them.
  void change(Candidacy& plan, bool coarse);

  // Reduces memory: one more block is recomputed, or the operators with the largest transient take options
  // with smaller ones. False if the move that was drawn is not possible.
  bool shrink(Candidacy& plan);
  // Stops recomputing one block. False if there is none to stop.
  bool keep_block(Candidacy& plan);

  size_t below(size_t n) { return static_cast<size_t>(dice_() % n); }  // n > 0

 private:
  static constexpr size_t kEnds = 6;  // operators at either end with moves of their own
  void list_in_order();
  void add_operators(std::vector<int> operators);
  bool set(Candidacy& plan, const std::vector<int>& operators, Mode mode, bool only_slices) const;

  struct Range {
    size_t first, last;
  };
  Range range(size_t length, bool coarse);
  void set_operators(Candidacy& plan, bool coarse);
  void set_run(Candidacy& plan);  // neighbours in execution order, which may then share a unit
  void set_blocks(Candidacy& plan, bool coarse);
  void copy_block(Candidacy& plan, bool coarse);
  bool set_batch(Candidacy& plan);
  void swap(Candidacy& plan);
  bool smaller_transient(Candidacy& plan) const;

  const Rehearsal& rehearsal_;
  std::vector<size_t> options_, whole_;     // by operator; unsplit ones, which come first
  std::vector<int> open_;                   // operators with several options
  std::vector<std::vector<int>> alike_;     // the same, grouped by kind or, in blocks, by position
  std::vector<std::vector<int>> of_block_;  // operators
  std::vector<const Kind*> recomputed_;     // kinds of blocks with several allowed ways
  std::vector<Change> in_order_;
  std::mt19937_64 dice_{1};  // its sequence is specified by the C++ standard
};

}  // namespace osdp::search
