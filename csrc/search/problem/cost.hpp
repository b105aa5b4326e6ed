// What one operator costs in memory and time under each way to shard it. Seconds come in as measured
// (doubles) and leave as integer picoseconds; everything after this is integers.
//
// Cost::Paper (section "Problem formulation" of the OSDP paper, N ranks, S bytes of parameters):
//   memory  M_model + b M_act                   (NO_SHARD), M_model / N + b M_act               (FULL_SHARD)
//   time    2 (N-1) (alpha + S/N beta) + b gamma (NO_SHARD), 3 (N-1) (alpha + S/N beta) + b gamma
//   (FULL_SHARD) of a split operator: the slices kept whole together as NO_SHARD, each sharded slice as
//   FULL_SHARD.
// Cost::Osdp: the runtime's, see docs/search.md.
#pragma once

#include "search/problem/model.hpp"
#include "search/problem/request.hpp"

namespace osdp::search {

// One way to treat one operator.
struct Candidate {
  Mode mode = Mode::NoShard;
  int64_t granularity = 1, sharded_slices = 0;
  Split split = Split::None;
  int64_t state_bytes = 0;           // parameters, gradients and optimizer state on the fullest rank
  int64_t gradient_bytes = 0;        // of state_bytes: what is there only once backward has made it
  int64_t whole_gradient_bytes = 0;  // of gradient_bytes: made in place by the operator's backward
  // In the operator's own phase only: the gradient that its backward makes, in place or to be reduced.
  int64_t own_bytes = 0;
  int64_t gathered_bytes = 0;    // kept gathered from forward to backward
  int64_t held_bytes = 0;        // kept from a block's recomputation to its backward (Recompute::Hold)
  int64_t transient_bytes = 0;   // the largest full tensor that exists only while it is used
  int64_t communication_ps = 0;  // per micro-batch, with the slices' overhead
  int64_t optimizer_ps = 0;      // per step
};

// All candidates of an operator with parameters, NO_SHARD first. Throws InvalidProblem naming the operator.
std::vector<Candidate> candidates(const Operator& op, const Device& device, const Space& space,
                                  Recompute recompute);

// What one choice costs, also one that a search would not consider: `sharded` of `granularity` slices. The
// operator has parameters. Throws InvalidProblem where it cannot be computed in such slices.
Candidate candidate_of(const Operator& op, const Device& device, const Space& space, Recompute recompute,
                       Mode mode, int64_t granularity, int64_t sharded, Split split);

// Memory for averaging the gradients of what every rank holds in full. See Note [Averaging].
int64_t averaging_bytes(const std::vector<Operator>& operators, const Device& device, const Space& space,
                        bool accumulates);

// Of recomputing its forward for one sample.
int64_t recompute_ps(const Operator& op, const Device& device);

// Seconds to picoseconds, rounded. Throws InvalidProblem that says whose time it is unless 0 <= seconds <
// 1e6.
int64_t picoseconds(double seconds, const char* whose, const std::string& name = {});

}  // namespace osdp::search
