// From a model, a machine and a wish to the plan that is returned: plans are searched by the objective, and
// the best ones are simulated and polished (planner/selection.cpp), under one limit or over many
// (planner/objectives.cpp).
//
// Note [Which objective is proven]
// The objective is additive so that its optimum can be proven; a step's critical path is not additive. If
// communication is entirely hidden behind computation, a second of it costs nothing; if computation is hidden
// behind communication, computation costs nothing. So several objectives are searched that weight a second of
// communication by different multiples of its measured exposure (Note [Rivals]). Their plans are simulated,
// and the fastest are polished on the simulator (heuristics/polish.hpp). The final objective is that of the
// rival whose plan is fastest in simulation; if the polished plan is farther from this objective's optimum
// than `replay` allows, the objective overweights communication, and the next smaller weight for which the
// plan is near enough is used. That objective is searched to the end, and the certificate is about it. The
// certificate's gap is how much worse the plan's objective is than the optimum.
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
  double at_least = 0;         // Memory: samples per second over all ranks
  double replay = 0;           // largest gap of the plan's objective, as a fraction; 0: no plan is simulated
  double time_limit_s = 0;     // for everything; 0: steps are counted, or kDefaultTimeLimitS
  int64_t work = 500'000'000;  // steps of one search: Note [The same plan on every rank]
  bool limit_is_of_sum = false;          // the limit applies to Answer::peak_bytes alone
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
  UsefulLimits useful_limits(const Wish& wish, const Interrupted& interrupted = {}) const;

 private:
  const Model model_;
  const Request request_;
  const PlanPlayer player_;
};

}  // namespace osdp::search
