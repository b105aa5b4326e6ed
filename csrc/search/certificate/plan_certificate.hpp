// An independent check of what a plan claims: that its decisions are in the search space, and the lower bound
// on the step of every plan that follows from the prices of memory in its certificate. Everything is computed
// from the costs of single options (certificate/option_cost.hpp) by the definitions of docs/search.md,
// operator by operator and in 128-bit integers; no code is shared with the search.
#pragma once

#include "search/problem/plain_plan.hpp"

namespace osdp::search {

struct PhasePrice {
  int phase = 0;  // operator whose backward runs; -1: the sum over the whole step (Cost::Paper)
  int64_t numerator = 0;
};

// The batches from `least` to `most`, of equal accumulation, and what memory costs in their bound.
struct BatchProof {
  Batch least, most;
  std::vector<PhasePrice> prices;
};

// A lower bound in ps, per `samples` samples, on the step of every plan that fits the request's limit, of the
// request's batches (none: all). For all prices p_j / q >= 0 of memory and a batch b
//   time >= sum over operators and blocks of min over choices of (t + sum_j p_j/q m_j) - sum_j p_j/q limit
// where t is the paper's time or, with Cost::Osdp, a part of the step bound with the request's shares, and
// m_j what is in phase j whatever the timing. Per sample that is least at one end of an interval of batches.
// Throws InvalidProblem if prices are invalid or the intervals leave out a batch.
int64_t proven_bound_ps(const Model& model, const Request& request, int64_t samples,
                        const std::vector<BatchProof>& proof, int64_t denominator);

// Empty if the plan's decisions are in the search space and, with Cost::Paper, its step takes `step_ps` and
// `peak_bytes`; otherwise one line that says what is wrong.
std::string check_plan(const Model& model, const Request& request, const PlainPlan& plan, int64_t step_ps,
                       int64_t peak_bytes);

// The plan's own step in the bound for the request's batches, in ps: for tests.
int64_t bound_of_plan_ps(const Model& model, const Request& request, const PlainPlan& plan);

}  // namespace osdp::search
