// The searches for one wish. They share its time limit, and an interruption ends all of them.
#pragma once

#include <optional>
#include <utility>

#include "search/heuristics/plan_evaluator.hpp"
#include "search/planner/planner.hpp"

namespace osdp::search {

inline constexpr double kAnyPlan = 1e18;  // a gap at which any plan ends a search

// The plan with the smallest largest peak that is known: planner/least_peak.hpp.
struct LeastPeak {
  bool found = false;
  IndexedPlan plan;
  int64_t largest_peak_bytes = 0;
};

class Searches {
 public:
  Searches(const Planner& planner, const Wish& wish, const Interrupted& interrupted);

  const Planner& planner() const { return planner_; }
  // The planner's request with this limit and these batches.
  Request request(int64_t limit_bytes, const std::vector<Batch>& batches) const;
  const Wish& wish() const { return wish_; }

  // With the times of a batch (0: the model's own). Ends at a relative gap of `gap`, or after `work` steps
  // (0: the wish's number, if it counts steps).
  Schedule run(const Request& request, int64_t times, double gap = 0, int64_t work = 0,
               const Known& known = {});

  // The plan with the fastest step that was found among those that fit, with a bound but without prices. If
  // there is none, the smallest limit known to be feasible.
  Answer best_plan(int64_t limit_bytes, const std::vector<Batch>& batches);
  // Whether there is a plan for this batch.
  bool fits(int64_t limit_bytes, Batch batch);
  // The plan with the smallest largest peak; cached for the last batches asked for.
  const LeastPeak& least(const std::vector<Batch>& batches);
  // The same, or one of a smaller peak that the search finds under lower limits: under the limit that this
  // one just keeps it finds none, so that limit is the smallest. least() is that from then on.
  const LeastPeak& lowest(const std::vector<Batch>& batches);

  // Whether the limit applies to the sum: with the paper's costs, and for one rank.
  bool limit_is_of_sum() const;
  // Remaining time; infinite if steps are counted, negative after the end.
  double left_s() const;
  double limit_s() const { return limit_s_; }
  // Between searches as well: playing polls nothing else.
  bool over() { return interrupted() || left_s() <= 0; }

 private:
  using Clock = std::chrono::steady_clock;
  // Asks at most every millisecond.
  bool interrupted();

  const Planner& planner_;
  const Wish& wish_;
  const Interrupted ask_;
  const double limit_s_;  // 0: none
  const Clock::time_point began_ = Clock::now();
  Clock::time_point asked_ = began_;
  bool interrupted_ = false;
  std::optional<std::pair<std::vector<Batch>, LeastPeak>> least_;
};

}  // namespace osdp::search
