// The searches of one wish: they share its time, and an interruption ends all of them.
#pragma once

#include <optional>
#include <utility>

#include "search/planner/planner.hpp"

namespace osdp::search {

class Searches {
 public:
  Searches(const Planner& planner, const Wish& wish, const Interrupted& interrupted);

  const Planner& planner() const { return planner_; }
  // The planner's, under this limit.
  Request request(int64_t limit_bytes, const std::vector<Batch>& batches) const;
  const Wish& wish() const { return wish_; }

  // Ends where the best plan is known but for the share `gap`, or after `work` steps; 0: the wish's, where it
  // counts them.
  Schedule run(const Request& request, double gap = 0, int64_t work = 0);

  // The plan that plays fastest of those near the objective's best whose step keeps the limit:
  // planner/whole_limit.cpp.
  Answer best_plan(int64_t limit_bytes, const std::vector<Batch>& batches);
  // Whether there is one of this batch.
  bool fits(int64_t limit_bytes, Batch batch);

  bool interrupted() const { return interrupted_; }
  // Of the time; infinite where steps are counted, negative once it is over.
  double left_s() const;
  double limit_s() const { return limit_s_; }
  bool over() const { return interrupted_ || left_s() <= 0; }

 private:
  // Of the wish's limit; there is no other for the paper's costs and for one rank.
  bool limit_is_of_sum() const;
  // The same of those whose sum keeps this limit: planner/selection.cpp. `find_smallest`: where none does,
  // the smallest that any plan has.
  Answer fastest_by_sum(int64_t sum_limit_bytes, const std::vector<Batch>& batches, bool find_smallest);
  Answer best_by_objective(int64_t sum_limit_bytes, const std::vector<Batch>& batches);
  // That of the smallest sum, by the objective, so that every wish finds the same; searched for once.
  const Answer& least_by_sum(const std::vector<Batch>& batches, int64_t smallest_sum_bytes);
  // That plan where its step keeps the limit; otherwise none, and the smallest limit under which it would.
  // `smallest_sum_bytes` is 0 where it is not known.
  Answer smallest(int64_t limit_bytes, const std::vector<Batch>& batches, int64_t smallest_sum_bytes);
  // Under smaller limits of the sum, and larger ones, until the step's own peak keeps its limit and fills it.
  Answer cut(Answer found, int64_t limit_bytes, const std::vector<Batch>& batches);
  Answer raised(Answer found, int64_t limit_bytes, const std::vector<Batch>& batches);

  const Planner& planner_;
  const Wish& wish_;
  const Interrupted& ask_;
  const double limit_s_;  // 0: none
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  bool interrupted_ = false;
  std::optional<std::pair<std::vector<Batch>, Answer>> least_;
};

}  // namespace osdp::search
