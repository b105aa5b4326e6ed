// What an option adds to the lower bound on a simulated step, for the checker: Note [Step bound] in
// problem/step_bound.hpp states the bound; this computes it anew and shares no code with it but the
// operators' positions (StepPosition).
#pragma once

#include "search/problem/plain_plan.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {

// Picoseconds of a micro-batch in 2^10ths (StepShares::kWhole), rounded down; may be negative, since what an
// option lets another unit save is subtracted.
int128 bound_cost(const Operator& op, const Request& request, Recompute recompute,
                  const PlainPlan::Choice& choice);

// The same of an operator's computation: fixed + per_sample x batch size; `again`: more in a recomputed
// block.
struct BoundComputation {
  int128 fixed = 0, per_sample = 0, again_fixed = 0, again_per_sample = 0;
};
// For micro-batches from `least` to `most`.
BoundComputation bound_computation(const Operator& op, const Request& request, int64_t least, int64_t most);

}  // namespace osdp::search
