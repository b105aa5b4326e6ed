// Kinds: operators and blocks that are alike count once. A loose operator is a kind of one slot; a block that
// can be recomputed is a kind whose slots are its operators, so that recomputation and sharding of a block
// are decided together.
#pragma once

#include "search/problem/cost.hpp"

namespace osdp::search {

// A value that grows with the batch size.
struct Linear {
  int64_t fixed = 0, per_sample = 0;
  int64_t operator()(int64_t b) const;  // throws InvalidProblem where it overflows 2^61
  double at(double b) const { return static_cast<double>(fixed) + static_cast<double>(per_sample) * b; }
};

struct Slot {
  Linear saved;  // activations kept for backward
  Linear work;   // in its own phase only: Note [Work]
  // Per Recompute: the same choices in the same order, at that recomputation's cost. Empty: no parameters.
  std::vector<Candidate> candidates[3];
};

struct Kind {
  bool block = false;
  std::vector<std::vector<int>> instances;  // operator indices, one per slot; instances in execution order
  std::vector<int> blocks;                  // beside instances: index into Model::blocks (blocks only)
  std::vector<Slot> slots;
  int64_t input_bytes_per_sample = 0;   // kept of a recomputed block
  int64_t recompute_ps_per_sample = 0;  // of computing its forward again
  std::vector<Recompute> ways;          // allowed; a loose operator has None only
};

struct Kinds {
  std::vector<Kind> kinds;  // in an order that does not depend on the order of operators
  // What no choice changes.
  Linear compute_ps;  // of one micro-batch
  // In every phase: the model's input and buffers, gradients that are averaged; by whether there are several
  // micro-batches.
  Linear held[2];
  std::vector<int64_t> transients;  // every size a transient may have, rising; smaller ones are impossible
  const Linear& held_bytes(int64_t accumulation) const { return held[accumulation > 1]; }
  int64_t held_bytes(Batch batch) const { return held_bytes(batch.accumulation)(batch.size); }
  int64_t most_batch = 0;  // of one micro-batch: no total of a step exceeds 2^61 (Note [Totals])
};

// Throws InvalidProblem where an operator cannot be sharded in any of the ways allowed, or where a total of a
// step of the batches asked for overflows.
Kinds find_kinds(const Model& model, const Request& request);

}  // namespace osdp::search
