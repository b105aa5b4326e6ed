// The searches for one wish. They share its time limit, and an interruption ends all of them.
#pragma once

#include <optional>
#include <utility>

#include "search/planner/planner.hpp"

namespace osdp::search {

inline constexpr double kAnyPlan = 1e18;  // a gap at which any plan ends a search

class Searches {
 public:
  Searches(const Planner& planner, const Wish& wish, const Interrupted& interrupted);

  const Planner& planner() const { return planner_; }
  // The planner's request with this limit and these batches.
  Request request(int64_t limit_bytes, const std::vector<Batch>& batches) const;
  const Wish& wish() const { return wish_; }

  // Ends at a relative gap of `gap`, or after `work` steps (0: the wish's number, if it counts steps).
  Schedule run(const Request& request, double gap = 0, int64_t work = 0);

  // The plan with the fastest simulated step among those near the objective's optimum whose step keeps the
  // limit: planner/selection.cpp. If there is none, the smallest limit known to be feasible.
  Answer best_plan(int64_t limit_bytes, const std::vector<Batch>& batches);
  // Whether there is such a plan for this batch.
  bool fits(int64_t limit_bytes, Batch batch);

  // Remaining time; infinite if steps are counted, negative after the end.
  double left_s() const;
  double limit_s() const { return limit_s_; }
  // Between searches as well: playing polls nothing else.
  bool over() { return interrupted() || left_s() <= 0; }

 private:
  using Clock = std::chrono::steady_clock;
  // Asks at most every millisecond.
  bool interrupted();
  // Whether the limit applies to the sum: if the wish says so, with the paper's costs, and for one rank.
  bool limit_is_of_sum() const;
  // The best plan by the objective under a limit of the sum alone.
  Answer plan_of_sum(const std::vector<Batch>& batches, int64_t sum_limit_bytes);
  // The best plan of the space's parts (planner/subspaces.hpp); `none`: what is known of the whole, in which
  // nothing was found. If no part has a plan either, the smallest limit of all.
  Answer best_of_parts(int64_t limit_bytes, const std::vector<Batch>& batches, const Answer& none);
  // No plan; the smallest limit known to be feasible, which is that of the plan with the smallest sum.
  static Answer infeasible(const Answer& least);
  // The plan under the smallest feasible limit of the sum, by the objective, so that it is the same for every
  // wish; cached. `smallest_sum_bytes`: that limit, 0 if not known.
  const Answer& least_by_sum(const std::vector<Batch>& batches, int64_t smallest_sum_bytes);

  const Planner& planner_;
  const Wish& wish_;
  const Interrupted ask_;
  const double limit_s_;  // 0: none
  const Clock::time_point began_ = Clock::now();
  Clock::time_point asked_ = began_;
  bool interrupted_ = false;
  std::optional<std::pair<std::vector<Batch>, Answer>> least_;
};

}  // namespace osdp::search
