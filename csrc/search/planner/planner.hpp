// From a model, a machine and a wish to the plan that is returned, with the proof of how fast any plan can
// be: under one limit (planner/step_search.cpp) or over many (planner/objectives.cpp).
//
// Note [What is proven]
// No plan of the search space that fits has a simulated step that is faster than Proof::lower_bound
// (planner/step_proof.hpp); the search ends when its plan is within Wish::gap of that. A part of the proof
// can be checked without a search, from prices of memory (planner/priced_batches.hpp). With Cost::Paper the
// step is the paper's, a sum over operators, whose optimum is found.
//
// Note [The same plan on every rank]
// If every rank runs the search itself, all must find the same plan. A clock would stop their searches at
// different points, so a search without a time limit is bounded by a count of its steps (Budget in
// problem/problem.hpp). A time limit uses the clock, and so does the default limit of searches over limits
// (Objective::Memory, Objective::Batch).
#pragma once

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
  double gap = 0.005;          // the search ends when its plan's step is within this fraction of the bound
  double time_limit_s = 0;     // for everything; 0: steps are counted, or kDefaultTimeLimitS
  int64_t work = 500'000'000;  // steps of one search: Note [The same plan on every rank]
  int64_t played_operators = 400'000;    // of local search, over all steps that it plays
  bool find_smallest = true;             // the smallest limit, where nothing fits: longer than to prove that
  std::function<void(double)> tell_gap;  // of the current pass: Budget::tell_gap
};

struct RowPrice {
  int phase = 0;           // operator index, or kWholeStep
  double ps_per_byte = 0;  // > 0
};

// Prices of memory that prove a bound for the batches from `least` to `most`, of equal accumulation.
struct PricedBatches {
  Batch least, most;
  std::vector<RowPrice> prices;
};

// A lower bound on the step of every plan that fits.
struct Proof {
  double lower_bound_s_per_sample = 0;  // per rank; 0: none is known
  bool attained = false;                // by the plan, exactly
  // What prices prove of it, which may be lower: about `priced_s_per_sample`, with these shares.
  StepShares shares;
  double priced_s_per_sample = 0;
  std::vector<int> phases;  // whose memory the search constrained
  std::vector<PricedBatches> priced;
};

// The plan and its properties. If nothing fits, only limit_bytes and smallest_limit_bytes are set.
struct Answer {
  bool feasible = false;
  PlainPlan plan;
  PlayedStep played;       // without events and memory; Cost::Paper: step_ps is the paper's
  int64_t peak_bytes = 0;  // Planner::largest_peak
  Proof proof;
  bool interrupted = false;          // the caller ended the search
  bool out_of_time = false;          // its time limit did: a smaller limit than smallest_limit_bytes may do
  int64_t limit_bytes = 0;           // limit of the search
  int64_t smallest_limit_bytes = 0;  // if infeasible: a feasible limit; 0: not known

  // The bound for as many samples as the plan's step has; at most the step's time.
  int64_t step_bound_ps() const;
  // Samples per second over all ranks.
  double throughput(int64_t ranks) const;
};

// The useful range of limits: the smallest feasible one, and the smallest one with the best throughput.
struct UsefulLimits {
  int64_t least = 0, most = 0;
};

// Called about once a millisecond; true ends the search with the best plan so far, and must stay true.
using Interrupted = std::function<bool()>;

class Searches;

// `request` has no limit and no batches. Methods are const and keep nothing between calls but the times of
// batches.
class Planner {
 public:
  // `at`: the model's times at other batches than those of `model`, if they are no lines in the batch.
  Planner(Model model, Request request, Manner manner, ModelAt at = {});
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // With the times of a batch; 0: its own.
  const Model& model(int64_t batch = 0) const { return model_.at(batch); }
  bool times_vary() const { return model_.varies(); }
  // For another planner of the model, which must not outlive this one.
  ModelAt times() const;
  // Simulates plans of the model; independent of the objective.
  const PlanPlayer& player() const { return player_; }
  std::vector<Members> units(const PlainPlan& plan) const;
  // A step of the plan, without events and memory.
  PlayedStep play(const PlainPlan& plan) const;
  // The largest memory peak of a step over all durations of communication (simulate/largest_peak.hpp).
  // Cost::Paper: its sum over the step.
  int64_t largest_peak(const PlainPlan& plan) const;
  const Request& request() const { return request_; }

  // Throws InvalidProblem for malformed arguments.
  Answer search(const Wish& wish, const Interrupted& interrupted = {}) const;
  // Some plan under `wish.limit_bytes`, found quickly.
  Answer any_plan(const Wish& wish, const Interrupted& interrupted = {}) const;
  // One answer per limit; `limits` ascending. A plan for a smaller limit is also one for a larger limit, so
  // each answer is the fastest so far in simulation. Infeasible limits are left out.
  std::vector<Answer> frontier(const Wish& wish, const std::vector<int64_t>& limits,
                               const Interrupted& interrupted = {}) const;
  // A lower bound on the step of every plan that fits the wish's limit, without prices. `times`: the batch
  // whose times are to be priced; 0: any. `thorough`: parts of the space are searched for longer at once.
  Proof prove(const Wish& wish, const Interrupted& interrupted = {}, int64_t times = 0,
              bool thorough = false) const;
  UsefulLimits useful_limits(const Wish& wish, const Interrupted& interrupted = {}) const;

 private:
  void price(Searches& searches, const std::vector<Batch>& batches, Answer& found) const;

  const TimedModel model_;
  const Request request_;
  const PlanPlayer player_;
};

}  // namespace osdp::search
