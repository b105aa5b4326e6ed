// Validation of the planner's input. Python checks its own arguments with more specific messages; these
// checks protect csrc/search from any caller, so that no index, division or sum in it can fail.
//
// Note [Totals]
// Sizes of single objects are limited here (2^50 bytes, 2^24 ranks), so that every cost of one operator fits
// 64 bits. Whether the sums over all operators fit depends on the batch size: find_equivalence_classes()
// computes the largest batch for which no total exceeds 2^61 (EquivalenceClasses::most_batch), and the search
// tries no larger one.
#pragma once

#include "search/problem/plain_plan.hpp"

namespace osdp::search {

inline constexpr int64_t kMostBytes = int64_t{1}
                                      << 50;  // of one operator's parameters; activations of one sample
inline constexpr int64_t kMostBatchAsked = int64_t{1} << 30;
inline constexpr int64_t kMostAccumulation = int64_t{1} << 40;
inline constexpr int64_t kMostCandidates = 10000;  // ways to shard one operator

// Each throws an InvalidProblem that says what is wrong, and where.
void validate(const Operator& op);
void validate(const Model& model);
void validate(const Collective& link, const std::string& what = "a collective");
void validate(const Device& device);
void validate(const Space& space);
void validate(const Request& request);
void validate(Batch batch);
// A plan for this model: one choice per operator, one way per block, no unknown code. Whether the plan is in
// the search space is checked elsewhere (check_plan).
void validate(const Model& model, const PlainPlan& plan);

}  // namespace osdp::search
