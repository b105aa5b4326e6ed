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

struct Way {
  Recompute way = Recompute::None;
  int64_t time = 0, input = 0;                 // of recomputation; bytes of the input kept for it
  int64_t in_flight = 0;                       // bytes in every phase: EquivalenceClass::in_flight
  std::vector<std::vector<SlotOption>> slots;  // undominated ones; empty: no parameters, or no option
};

// `memory_alone`: all times are 0.
std::vector<Way> ways_of(const EquivalenceClass& cls, const Request& request, Batch batch, bool memory_alone);

// Whether every operator with parameters has an option.
bool has_options(const EquivalenceClass& cls, const std::vector<Way>& ways);

}  // namespace osdp::search
