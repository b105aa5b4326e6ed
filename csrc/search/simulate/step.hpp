// One training step of one rank, as plain values: what computes, what is gathered and reduced, what they take
// when nothing else runs, and what they hold. See simulate/step_program.hpp for the order in which
// csrc/runtime does it.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace osdp::search {

// What a collective's bytes travel over.
enum class Link : int { InsideHost, BetweenHosts };

// How long something takes on its lane: while nothing is computed, and while this rank computes all the time.
// On a CPU each message then waits for a core.
struct LaneTime {
  int64_t alone_ps = 0, beside_ps = 0;  // beside_ps >= alone_ps
  int64_t transfer_ps = 0;              // of alone_ps: what its link is busy; the rest is latency
  Link link = Link::InsideHost;
};

// One operator's share of a micro-batch.
struct StepOperator {
  std::string name;
  int64_t forward_ps = 0, backward_ps = 0;
  int64_t resident_bytes = 0;  // parameters and optimizer state on this rank, all the time
  int64_t saved_bytes = 0;     // activations, from its forward to its backward
  int64_t whole_gradient_bytes =
      0;  // from its backward on: of what every rank holds in full, and of all slices
  int64_t full_gradient_bytes = 0;  // of what is sharded, but for slices: until the unit's reduction is over
  int64_t parts = 1;                // it is computed in so many slices, the sharded ones last
  int block = -1;                   // the recomputed block that it is in, or -1
  int64_t work_bytes = 0;           // while its backward runs: Note [Work] in problem/phases.hpp
  int64_t recompute_ps = 0;         // its forward, the second time
};

// A recomputed block: neighbouring operators.
struct StepBlock {
  bool hold = false;  // parameters are kept from the recomputation to the backward
  int64_t input_bytes = 0;
};

// Operators [first, last] during whose computation a unit must be there: what one module's call spans.
struct Span {
  int first = 0, last = 0;
  auto operator<=>(const Span&) const = default;
};

// What is gathered and reduced together. A slice of a split operator is a unit of its own.
struct StepUnit {
  std::string name;
  std::vector<int> members;  // operators whose gradients it waits for; rising
  std::vector<Span> calls;   // that gather it; rising, one per module
  int64_t repeats = 1;       // gathers of each call in a forward: the module is called so many times
  bool keeps = false;        // SHARD_GRAD_OP: gathered until its backward is over
  bool slice = false;        // asked for by its operator's product, and let go right after it
  LaneTime gather;
  LaneTime reduce;                  // zero: nothing of it is trained
  LaneTime average;                 // HYBRID_SHARD: what is reduced then travels between hosts, on their lane
  int64_t full_bytes = 0;           // gathered
  int64_t gradient_bytes = 0;       // its members' full gradients, until they are reduced
  int64_t kept_gradient_bytes = 0;  // this rank's part of the gradient, from the reduction on
  // Beside the gradients when their reduction begins: copies of those that cannot be sent as they are.
  int64_t copied_bytes = 0;
};

// Gradients that every rank holds in full, all-reduced together once all are there.
struct StepBucket {
  std::string name;
  std::vector<int> members;
  LaneTime reduce;
  int64_t buffer_bytes = 0;  // that they are packed into meanwhile
};

// How the runtime communicates; see csrc/comm/lane.hpp.
struct Lanes {
  bool separate_reductions = false;  // they have a lane of their own; else gathers share theirs
  // They are streams of an accelerator: computation waits for one reduction before it submits the next.
  bool enqueue = false;
};

struct Step {
  std::vector<StepOperator> operators;  // in execution order
  std::vector<StepBlock> blocks;
  std::vector<StepUnit> units;
  std::vector<StepBucket> buckets;
  int64_t accumulation = 1;  // micro-batches
  int64_t prefetch = 1;      // units of the largest size whose memory may hold what is gathered ahead
  Lanes lanes;
  int64_t held_bytes = 0;  // all the time: the model's input
  int64_t optimizer_ps = 0;
};

}  // namespace osdp::search
