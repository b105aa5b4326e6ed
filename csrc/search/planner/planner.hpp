// From a model, a machine and a wish to the plan that is returned: plans are searched by the objective, and
// the best ones are simulated and polished (planner/step_search.cpp), under one limit or over many
// (planner/objectives.cpp).
//
// Note [What is proven]
// Two things. Of the simulated step: no plan that fits is faster than Answer::step_bound_s_per_sample
// (planner/step_proof.hpp), and the search ends when its plan is within Wish::gap of that
// (planner/step_search.hpp). Of an objective, the time of a step as a sum over operators with a weight for
// communication, whose optimum is proven exactly and can be checked from multipliers alone: the certificate
// says how far the plan is from it. The weight is the machine's, or a smaller one where the plan would be
// farther than Wish::replay from the optimum.
//
// Note [The same plan on every rank]
// If every rank runs the search itself, all must find the same plan. A clock would stop their searches at
// different points, so a search without a time limit is bounded by a count of its steps (Budget in
// problem/problem.hpp). A time limit uses the clock, and so does the default limit of searches over limits
// (Objective::Memory, Objective::Batch).
#pragma once

#include <optional>

#include "search/branch/schedule.hpp"
#include "search/simulate/play_plan.hpp"

namespace osdp::search {

enum class Objective : int { Throughput = 0, Memory = 1, Batch = 2 };
inline constexpr std::array<const char*, 3> kObjectives{"throughput", "memory", "batch"};

// Default of searches that use the clock.
inline constexpr double kDefaultTimeLimitS = 10.0;

struct Wish {
  int64_t limit_bytes = 0;     // holds for the plan's step for all durations of communication
  std::vector<Batch> batches;  // empty: every size from 1 to the largest that fits, one micro-batch
  Objective objective = Objective::Throughput;
  double at_least = 0;           // Memory: samples per second over all ranks
  double replay = 0;             // gap above which another objective is proven; 0: no plan is simulated
  double gap = 0.005;            // the search ends when its plan's step is within this fraction of the bound
  double time_limit_s = 0;       // for everything; 0: steps are counted, or kDefaultTimeLimitS
  int64_t work = 500'000'000;    // steps of one search: Note [The same plan on every rank]
  bool limit_is_of_sum = false;  // the limit applies to Answer::peak_bytes alone
  std::function<void(double)> tell_gap;  // of the current search: Budget::tell_gap
};

// The plan and its properties. If nothing fits, only limit_bytes and smallest_limit_bytes are set.
struct Answer {
  bool feasible = false;
  bool optimal = false;  // the plan's objective is the optimum
  bool proven = false;   // the optimum is known and keeps the limit; the plan attains it or simulates faster
  PlainPlan plan;
  int64_t step_ps = 0, peak_bytes = 0;  // by the objective
  int64_t largest_peak_bytes = 0;       // Planner::largest_peak
  PlayedStep played;             // without events and memory; Cost::Paper: its step_ps is the objective
  double exposed = 1;            // Device::exposed of the objective
  std::vector<RowPrice> prices;  // prices of memory
  double lower_bound_s_per_sample = 0;  // per rank, of the objective
  double step_bound_s_per_sample = 0;   // per rank, of the simulated step of every plan that fits; 0: none
  int64_t limit_bytes = 0;              // limit of the search
  int64_t sum_limit_bytes = 0;       // limit of peak_bytes to which the proof refers: Note [The whole limit]
  int64_t smallest_limit_bytes = 0;  // if infeasible: a feasible limit; 0: not known

  // Samples per second over all ranks.
  double throughput(int64_t ranks) const;
};

// The useful range of limits: the smallest feasible one, and the smallest one with the best throughput.
struct UsefulLimits {
  int64_t least = 0, most = 0;
};

// Called about once a millisecond; true ends the search with the best plan so far, and must stay true.
using Interrupted = std::function<bool()>;

// `request` has no limit and no batches. Methods are const and keep no state between calls.
class Planner {
 public:
  Planner(Model model, Request request, Manner manner);
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  const Model& model() const { return model_; }
  // Simulates plans of the model; independent of the objective.
  const PlanPlayer& player() const { return player_; }
  std::vector<Members> units(const PlainPlan& plan) const;
  // The largest memory peak of a step over all durations of communication (simulate/largest_peak.hpp). A
  // search compares its limit with a sum that is usually larger, since it reserves room for the largest
  // transients, and for averaging gradients, in every phase. Cost::Paper: that sum, `peak_bytes`.
  int64_t largest_peak(const PlainPlan& plan, int64_t peak_bytes) const;
  // The request with the weight of communication `exposed`; by default the machine's.
  Request request(std::optional<double> exposed = {}) const;

  // Throws InvalidProblem for malformed arguments.
  Answer search(const Wish& wish, const Interrupted& interrupted = {}) const;
  // Some plan under `wish.limit_bytes`, found quickly.
  Answer any_plan(const Wish& wish, const Interrupted& interrupted = {}) const;
  // One answer per limit; `limits` ascending. A plan for a smaller limit is also one for a larger limit, so
  // each answer is the fastest so far in simulation. Infeasible limits are left out.
  std::vector<Answer> frontier(const Wish& wish, const std::vector<int64_t>& limits,
                               const Interrupted& interrupted = {}) const;
  // A lower bound, per rank and sample, on the simulated step of every plan that fits the wish's limit; 0
  // with Cost::Paper, for one rank, or if nothing fits.
  double step_bound_s_per_sample(const Wish& wish, const Interrupted& interrupted = {}) const;
  UsefulLimits useful_limits(const Wish& wish, const Interrupted& interrupted = {}) const;

 private:
  const Model model_;
  const Request request_;
  const PlanPlayer player_;
};

}  // namespace osdp::search
