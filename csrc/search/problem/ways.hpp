// The ways to treat one class (an operator or a block) for one batch size: its recomputations, and under each
// the options of every operator, with what they take of time and memory.
#pragma once

#include "search/problem/equivalence_classes.hpp"

namespace osdp::search {

// One option of an operator under one recomputation: time in ps, the rest in bytes.
struct SlotOption {
  int candidate = -1;  // index into the slot's candidates; -1: no parameters
  int64_t time = 0;
  int64_t before = 0, after = 0;      // in the phases before the end of its backward, and after it
  int64_t own = 0;                    // in its own phase, beside `before`
  int64_t held = 0;                   // in the phases of its recomputed block until its own, beside `before`
  int64_t late = 0;                   // part of `own` that is there only when what others left is gone
  int64_t left = 0, left_phases = 0;  // in so many phases before its own, beside `after`
};

// Prefix sums of the phases' prices in ps per byte, so that the total of a range takes one subtraction.
class PhasePrices {
 public:
  explicit PhasePrices(const std::vector<double>& prices);
  PhasePrices times(double scale) const {
    PhasePrices scaled = *this;
    for (double& s : scaled.sums_) s *= scale;
    return scaled;
  }
  double before(size_t phase) const { return sums_[phase]; }  // sum over all phases before this one
  double from(size_t phase) const { return sums_.back() - sums_[phase]; }
  double of(size_t first, size_t end) const { return sums_[end] - sums_[first]; }
  double all() const { return sums_.back(); }

 private:
  std::vector<double> sums_;
};

// Sum over phases of price x bytes of an option of operator i, whose block ends before operator `end`. It
// counts in phase i as beside what others left: Note [Gradients that are left].
inline double memory_cost(const SlotOption& o, const PhasePrices& prices, size_t i, size_t end) {
  return prices.from(i) * static_cast<double>(o.before) + prices.before(i) * static_cast<double>(o.after) +
         prices.of(i, i + 1) * static_cast<double>(o.own - o.late) +
         prices.of(i, end) * static_cast<double>(o.held) +
         prices.of(i - static_cast<size_t>(o.left_phases), i) * static_cast<double>(o.left);
}

struct Way {
  Recompute way = Recompute::None;
  int64_t time = 0, input = 0;                 // of recomputation; bytes of the input kept for it
  int64_t in_flight = 0;                       // bytes in every phase: EquivalenceClass::in_flight
  std::vector<std::vector<SlotOption>> slots;  // undominated ones; empty: no parameters, or no option
};

// What a candidate takes of memory under a recomputation.
SlotOption slot_option(const Candidate& candidate, Recompute way, const Request& request, Batch batch);

// `memory_alone`: all times are 0.
std::vector<Way> ways_of(const EquivalenceClass& cls, const Request& request, Batch batch, bool memory_alone);

// Whether every operator with parameters has an option.
bool has_options(const EquivalenceClass& cls, const std::vector<Way>& ways);

}  // namespace osdp::search
