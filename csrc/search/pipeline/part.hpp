// A part of a model: the operators of one stage, out of those of all.
#pragma once

#include "search/problem/model.hpp"
#include "search/simulate/play_plan.hpp"

namespace osdp::search {

// Operators at `chosen` (ascending positions) with the blocks that they are in, in order. Throws
// InvalidProblem for a position that does not exist, or is not above the one before.
Model part_of(const Model& model, const std::vector<int>& chosen, int64_t input_bytes_per_sample,
              int64_t buffer_bytes);

// The same of how they are carried out: calls that gather an operator are cut to the part.
Manner part_of(const Manner& manner, const std::vector<int>& chosen);

}  // namespace osdp::search
