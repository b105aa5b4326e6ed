// What the planner refuses before it begins. Python checks its own arguments, and says more about them; this
// is for every caller of csrc/search, so that no index, division or sum in it can go wrong.
//
// Note [Totals]
// Sizes of single things are limited here (2^50 bytes, 2^24 ranks), so that what is made of one operator fits
// 64 bits. Whether the sums over all operators do depends on the batch size: find_kinds() knows the largest
// batch of which no total exceeds 2^61 (Kinds::most_batch), and no larger one is looked at.
#pragma once

#include "search/problem/plain_plan.hpp"

namespace osdp::search {

inline constexpr int64_t kMostBytes = int64_t{1}
                                      << 50;  // of one operator's parameters; activations of one sample
inline constexpr int64_t kMostBatchAsked = int64_t{1} << 30;
inline constexpr int64_t kMostAccumulation = int64_t{1} << 40;
inline constexpr int64_t kMostCandidates = 10000;  // ways to shard one operator

// Each throws InvalidProblem that says what is wrong, and where.
void validate(const Operator& op);
void validate(const Model& model);
void validate(const Collective& link, const std::string& what = "a collective");
void validate(const Device& device);
void validate(const Space& space);
void validate(const Request& request);
void validate(Batch batch);
// A plan for this model: one choice per operator, one way per block, no unknown code. Whether the search
// could have made it is another question (check_plan).
void validate(const Model& model, const PlainPlan& plan);

}  // namespace osdp::search
