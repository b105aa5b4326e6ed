// The searches of one wish: they share its time, and an interruption ends all of them.
#pragma once

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

  // Under this limit the plan that plays fastest of those near the objective's best: planner/selection.cpp.
  Answer best_plan(int64_t limit_bytes, const std::vector<Batch>& batches, bool find_smallest = false);

  bool interrupted() const { return interrupted_; }
  // Of the time; infinite where steps are counted, negative once it is over.
  double left_s() const;
  double limit_s() const { return limit_s_; }
  bool over() const { return interrupted_ || left_s() <= 0; }

 private:
  const Planner& planner_;
  const Wish& wish_;
  const Interrupted& ask_;
  const double limit_s_;  // 0: none
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  bool interrupted_ = false;
};

}  // namespace osdp::search
