// Equivalence classes: equal operators, and equal blocks, are represented once. An operator outside
// recomputable blocks is an instance of a class with one slot; a recomputable block is an instance of a class
// whose slots are its operators, so that recomputation and sharding of a block are decided together.
#pragma once

#include "search/problem/cost.hpp"

namespace osdp::search {

struct Slot {
  Linear saved;  // activations kept for backward
  Linear work;   // in its own phase only: Note [Work]
  // One list per Recompute: the same choices in the same order, with that recomputation's costs. Empty: no
  // parameters.
  std::vector<Candidate> candidates[3];
};

struct EquivalenceClass {
  bool block = false;
  std::vector<std::vector<int>> instances;  // operator indices, one per slot; instances in execution order
  std::vector<int> blocks;                  // per instance: index into Model::blocks (blocks only)
  std::vector<Slot> slots;
  int64_t input_bytes_per_sample = 0;  // kept when the block is recomputed
  // By Recompute, of a block: what other micro-batches in flight hold of it in every phase (Note [Stages of a
  // pipeline] in problem/request.hpp). That of operators outside blocks is in EquivalenceClasses::held.
  Linear in_flight[3];
  Linear recompute_ps;          // of recomputing its forward, in a micro-batch
  std::vector<Recompute> ways;  // allowed ones; an operator outside blocks has None only
};

struct EquivalenceClasses {
  std::vector<EquivalenceClass> classes;  // in an order that does not depend on the order of operators
  // Independent of all choices.
  Linear compute_ps;  // of one micro-batch; may be negative in the step bound, which subtracts its shifts
  Linear held;  // in every phase: the model's input and buffers, and what other micro-batches in flight hold
                // outside blocks
  int64_t most_batch = 0;  // the largest micro-batch with no total of a step above 2^61 (Note [Totals])
};

// Throws InvalidProblem if an operator cannot be sharded in any allowed mode, or if a total of a step
// overflows for one of the requested batches.
EquivalenceClasses find_equivalence_classes(const Model& model, const Request& request);

}  // namespace osdp::search
