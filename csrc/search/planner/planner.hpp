// From a model, a machine and a wish to the plan that is returned: the objective is searched, the best plans
// are played and polished (planner/selection.cpp), under one limit or over many (planner/objectives.cpp).
//
// Note [Which objective is proven]
// The objective is additive so that its optimum can be proven; a step's critical path is not additive. Where
// communication is all hidden behind computation, a second of it costs nothing, and where computation is
// hidden behind communication, computation does. So a few objectives are searched that take a second of
// communication for these shares of what it shows on the machine (Note [Rivals]). Their plans are played, and
// the fastest are polished on the simulator (heuristics/polish.hpp). The problem's objective is that of the
// rival which plays best; where the polished plan is farther from its optimum than `replay` allows, it
// overrates communication, and the next smaller share is taken by which the plan is near enough. That
// objective is searched to the end: it is what the certificate is about. How much worse the plan's objective
// is than the optimum is the certificate's gap.
//
// Note [The same plan on every rank]
// Where every rank searches for itself, all must find the same plan. A clock would end their searches at
// different points, so what a search does without a time limit is bounded by steps that it counts (Budget in
// problem/problem.hpp). A time limit is kept by the clock, and so is the default one of searches over limits
// (Objective::Memory, Objective::Batch).
#pragma once

#include <optional>

#include "search/branch/schedule.hpp"
#include "search/simulate/play_plan.hpp"

namespace osdp::search {

enum class Objective : int { Throughput = 0, Memory = 1, Batch = 2 };
inline constexpr std::array<const char*, 3> kObjectives{"throughput", "memory", "batch"};

// Of a search with a clock that is given no time limit.
inline constexpr double kDefaultTimeLimitS = 10.0;

struct Wish {
  int64_t limit_bytes = 0;     // the plan's step fits it, however long its communication takes
  std::vector<Batch> batches;  // empty: every size from 1 to the largest that fits, one micro-batch
  Objective objective = Objective::Throughput;
  double at_least = 0;  // Memory: samples per second over all ranks
  double replay = 0;  // share that the plan may be worse than the best by the objective; 0: nothing is played
  double time_limit_s = 0;               // of everything; 0: steps are counted, or kDefaultTimeLimitS
  int64_t work = 500'000'000;            // steps of one search: Note [The same plan on every rank]
  bool limit_is_of_sum = false;          // the limit is of Answer::peak_bytes alone
  std::function<void(double)> tell_gap;  // of the search that runs: Budget::tell_gap
};

// The plan, and what is known of it. Where nothing fits, only limit_bytes and smallest_limit_bytes.
struct Answer {
  bool feasible = false;
  bool optimal = false;  // the plan has the least objective of all
  bool proven = false;   // the least objective is known; the plan's is that, or one that plays faster
  PlainPlan plan;
  int64_t step_ps = 0, peak_bytes = 0;  // by the objective
  int64_t largest_peak_bytes = 0;       // Planner::largest_peak
  PlayedStep played;             // but for events and memory; Cost::Paper: its step_ps is the objective's
  double exposed = 1;            // Device::exposed of the objective
  std::vector<RowPrice> prices;  // of memory
  double lower_bound_s_per_sample = 0;  // per rank, of the objective
  int64_t limit_bytes = 0;              // that the plan was searched under
  int64_t sum_limit_bytes =
      0;  // that its peak_bytes was held against, and what is proven is of: Note [The whole limit]
  int64_t smallest_limit_bytes = 0;  // where infeasible: one that works; 0: not known

  // Samples per second over all ranks.
  double throughput(int64_t ranks) const;
};

// Limits worth looking at: the least under which there is a plan, and the least that gives the best
// throughput.
struct UsefulLimits {
  int64_t least = 0, most = 0;
};

// Asked about every millisecond; true ends the search with the best so far, and stays true.
using Interrupted = std::function<bool()>;

// `request` without a limit or batches. Methods are const and keep nothing between calls.
class Planner {
 public:
  Planner(Model model, Request request, Manner manner);
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  const Model& model() const { return model_; }
  // Plays plans of the model, whatever objective they are the best by.
  const PlanPlayer& player() const { return player_; }
  std::vector<Members> units(const PlainPlan& plan) const;
  // The most that a step may hold, however long communication takes (simulate/largest_peak.hpp), with what is
  // copied to average gradients (averaging_bytes). A search's limit is held against a sum that is mostly
  // larger, since it keeps room for the largest transients in every phase. Cost::Paper: that sum.
  int64_t largest_peak(const PlainPlan& plan, int64_t peak_bytes) const;
  // The request under an objective that takes a second of communication for `exposed`; none: the machine's.
  Request request(std::optional<double> exposed = {}) const;

  // Throws InvalidProblem for what cannot mean anything.
  Answer search(const Wish& wish, const Interrupted& interrupted = {}) const;
  // Some plan under `wish.limit_bytes`, soon.
  Answer any_plan(const Wish& wish, const Interrupted& interrupted = {}) const;
  // By limit, in rising order. What fits a smaller limit fits a larger one: the plan that plays fastest so
  // far. Limits that nothing fits are left out.
  std::vector<Answer> frontier(const Wish& wish, const std::vector<int64_t>& limits,
                               const Interrupted& interrupted = {}) const;
  UsefulLimits useful_limits(const Wish& wish, const Interrupted& interrupted = {}) const;

 private:
  const Model model_;
  const Request request_;
  const PlanPlayer player_;
};

}  // namespace osdp::search
