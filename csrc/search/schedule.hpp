// The batch-size loop (the paper's Scheduler): over batch sizes, recomputation and the largest transient, the
// plan with the least time per sample that fits. See docs/search.md for the objective.
#pragma once

#include "search/branch.hpp"
#include "search/cost.hpp"

namespace osdp::search {

struct Block {
  std::string name;
  int64_t input_bytes_per_sample = 0;
  int kind = 0;  // blocks of one kind are recomputed alike
};

struct Model {
  std::vector<Operator> operators;
  std::vector<Block> blocks;
  int kinds = 0;  // of blocks
  int64_t input_bytes_per_sample = 0;
};

// A batch size per rank and how many such micro-batches make one step.
struct Batch {
  int64_t size = 1, accumulation = 1;
};

struct Request {
  Device device;
  Space space;
  int64_t limit_bytes = 0;
  std::vector<Batch> batches;         // empty: every size from 1 to the largest that fits, one micro-batch
  std::vector<Recompute> recompute;   // what may be done with a kind of blocks; never empty
  int64_t least_transient_bytes = 0;  // units are at least this large: 3 x this is always reserved
  bool depth_first = false;           // the paper's search in place of the exact one
};

inline constexpr int64_t kMostBatch = 65536;  // where activations cost nothing, no larger batch is tried

// As Fixed::transient_bytes: every candidate is in, and nothing is reserved. To look at all candidates, not
// to plan.
inline constexpr int64_t kAnyTransient = int64_t{1} << 59;

// The knapsack that is left when batch, recomputation per kind of blocks and largest transient are fixed.
struct Fixed {
  Batch batch;
  std::vector<Recompute> recompute;  // per kind
  int64_t transient_bytes = 0;       // candidates with more are out; 3 x this is reserved
};
struct Knapsack {
  Problem problem;  // operators with parameters only; limit: what is left for their state
  std::vector<std::vector<Candidate>> candidates;  // beside problem.operators
  std::vector<int> operators;                      // index into Model::operators
  int64_t constant_ps = 0;                         // the rest of a step's time
  int64_t constant_bytes = 0;                      // the rest of the peak; limit = request's limit - this
};
Knapsack make_knapsack(const Model& model, const Request& request, const Fixed& fixed);

struct Schedule {
  bool feasible = false;
  bool optimal = false;  // over the whole space: batches, recomputation, transients, choices
  Fixed fixed;
  Knapsack knapsack;
  Solution solution;  // of the knapsack
  int64_t step_ps = 0, peak_bytes = 0;
  int64_t smallest_limit_bytes =
      0;  // where infeasible: the least limit that works, with the plan that needs it
  int64_t knapsacks = 0, nodes = 0;
  double seconds = 0;
  double lower_bound_s_per_sample = 0;  // per rank; what the whole search proved
};

Schedule schedule(const Model& model, const Request& request, const Budget& budget = {});

}  // namespace osdp::search
