// What one operator costs in memory and time under each way to shard it. Measured times enter as seconds
// (doubles) and are converted to integer picoseconds here; all later arithmetic is on integers.
//
// Cost::Paper (section "Problem formulation" of the OSDP paper, N ranks, S bytes of parameters):
//   memory  M_model + b M_act                   (NO_SHARD), M_model / N + b M_act               (FULL_SHARD)
//   time    2 (N-1) (alpha + S/N beta) + b gamma (NO_SHARD)
//           3 (N-1) (alpha + S/N beta) + b gamma (FULL_SHARD)
//   A split operator: its unsharded slices together cost as NO_SHARD, each sharded slice as FULL_SHARD.
// Cost::Osdp: the costs of this library's runtime, see docs/search.md.
//
// Note [Sums of slices]
// In 16 bits backward adds the gradients of a product's input up in a float tensor, as large as the input of
// the whole batch, if its outputs are in slices (simulate/step_of_plan.cpp). An option's bytes know no batch:
// in the phases of a part of the space (Space::divided) it is that of the smallest micro-batch there.
#pragma once

#include "search/problem/model.hpp"
#include "search/problem/request.hpp"

namespace osdp::search {

// An affine function of the batch size.
struct Linear {
  int64_t fixed = 0, per_sample = 0;
  int64_t operator()(int64_t b) const;  // throws InvalidProblem if it overflows 2^61
  double at(double b) const { return static_cast<double>(fixed) + static_cast<double>(per_sample) * b; }
};

// One way to shard one operator, with its costs.
struct Candidate {
  Mode mode = Mode::NoShard;
  int64_t granularity = 1, sharded_slices = 0;
  Split split = Split::None;
  int64_t state_bytes = 0;           // parameters, gradients and optimizer state on the rank that holds most
  int64_t gradient_bytes = 0;        // the part of state_bytes that is allocated only in backward
  int64_t whole_gradient_bytes = 0;  // the part of gradient_bytes that backward writes in place
  // Counted in the operator's own phase only: the gradient its backward produces, in place or to be reduced.
  int64_t own_bytes = 0;
  // The part of own_bytes that is there already where gradients of earlier micro-batches are: those of slices
  // are added to them in place.
  int64_t summed_bytes = 0;
  int64_t late_bytes = 0;  // the part of own_bytes that is there only when what others left is gone
  // In so many phases before its own: Note [Gradients that are left] in problem/phases.hpp.
  int64_t left_bytes = 0, left_phases = 0;
  int64_t gathered_bytes = 0;    // gathered parameters kept from forward to backward
  int64_t held_bytes = 0;        // gathered parameters kept from recomputation to backward (Recompute::Hold)
  int64_t transient_bytes = 0;   // the largest full tensor that exists only while it is used
  int64_t communication_ps = 0;  // per micro-batch, including the overhead of slices
  int64_t optimizer_ps = 0;      // per step
  int64_t host_bytes = 0;  // parameters, gradients and optimizer state in host memory: of offloaded ones
};

// All candidates of an operator with parameters, NO_SHARD first. Throws InvalidProblem naming the operator.
std::vector<Candidate> candidates(const Operator& op, const Device& device, const Space& space,
                                  Recompute recompute);

// The cost of one choice, `sharded` of `granularity` slices, even one outside the search space, with the
// bytes that the runtime keeps of it: of a replicated gradient those in the parameter's dtype. The operator
// must have parameters. Throws InvalidProblem if the operator cannot be split into these slices.
Candidate candidate_of(const Operator& op, const Device& device, const Space& space, Recompute recompute,
                       Mode mode, int64_t granularity, int64_t sharded, Split split);

// How much longer a micro-batch takes if the operator's products are computed in `granularity` slices.
double slices_s(const Operator& op, const Space& space, int64_t granularity);

// The picoseconds to recompute the operator's forward.
Linear recompute_ps(const Operator& op, const Device& device);

// Converts seconds to picoseconds, rounded. Throws an InvalidProblem that names the owner of the time
// (`whose`, `name`) unless 0 <= seconds < 1e6.
int64_t picoseconds(double seconds, const char* whose, const std::string& name = {});

}  // namespace osdp::search
