#include "search/planner/searches.hpp"

#include <algorithm>
#include <limits>

#include "search/planner/additive_search.hpp"
#include "search/planner/least_peak.hpp"
#include "search/planner/peak_limit.hpp"
#include "search/planner/step_search.hpp"

namespace osdp::search {
namespace {

constexpr int64_t kStateBytes = int64_t{256} << 20;  // for each knapsack that a search solves
constexpr double kLeastShare = 0.01;  // fraction of the time that is always granted, for a first plan

bool counts_work(const Request& request, const Wish& wish) {
  return !request.depth_first && wish.time_limit_s <= 0 && wish.objective == Objective::Throughput;
}

double limit_s(const Request& request, const Wish& wish) {
  if (wish.time_limit_s > 0) return wish.time_limit_s;
  return request.depth_first || counts_work(request, wish) ? 0 : kDefaultTimeLimitS;
}

}  // namespace

Searches::Searches(const Planner& planner, const Wish& wish, const Interrupted& interrupted)
    : planner_(planner),
      wish_(wish),
      ask_(interrupted),
      limit_s_(osdp::search::limit_s(planner.request(), wish)) {}

double Searches::left_s() const {
  if (limit_s_ <= 0) return std::numeric_limits<double>::infinity();
  return limit_s_ - std::chrono::duration<double>(Clock::now() - began_).count();
}

bool Searches::interrupted() {
  const auto now = Clock::now();
  if (interrupted_ || !ask_ || now - asked_ < std::chrono::milliseconds(1)) return interrupted_;
  asked_ = now;
  return interrupted_ = ask_();
}

Request Searches::request(int64_t limit_bytes, const std::vector<Batch>& batches) const {
  Request request = planner_.request();
  request.limit_bytes = limit_bytes;
  request.batches = batches;
  request.find_smallest = false;
  return request;
}

Schedule Searches::run(const Request& request, int64_t times, double gap, int64_t work, const Known& known) {
  Budget budget;
  if (limit_s_ > 0) budget.time_limit_s = std::max(left_s(), kLeastShare * limit_s_);
  budget.interrupted = [this] { return interrupted(); };
  budget.gap = gap;
  budget.state_bytes = kStateBytes;
  budget.tell_gap = wish_.tell_gap;
  if (work == 0 && counts_work(request, wish_)) work = wish_.work;
  if (work > 0) budget.work = &work;
  const int64_t before = work;
  Schedule s = schedule(planner_.model(times), request, budget, known);
  s.work = before - work;
  return s;
}

bool Searches::limit_is_of_sum() const {
  const Request& request = planner_.request();
  return request.paper() || request.moves_nothing();
}

Answer Searches::best_plan(int64_t limit_bytes, const std::vector<Batch>& batches) {
  const Request problem = request(limit_bytes, batches);
  if (limit_is_of_sum()) return additive_optimum(*this, problem);
  const PeakLimit limit(limit_bytes);
  Answer found = fastest_step(*this, problem, limit);
  if (!found.feasible && wish_.find_smallest) {
    const LeastPeak& least = lowest(batches);
    if (least.found && limit.spare(least.largest_peak_bytes) >= 0)
      found = fastest_step(*this, problem, limit);  // begins with that
    else if (least.found)
      found.smallest_limit_bytes = PeakLimit::smallest(least.largest_peak_bytes);
  }
  found.limit_bytes = limit_bytes;
  return found;
}

const LeastPeak& Searches::lowest(const std::vector<Batch>& batches) {
  least(batches);
  LeastPeak& least = least_->second;
  const Request problem = request(0, batches);
  PlanEvaluator evaluator(problem, planner_.player(), 0);
  while (least.found && !over()) {
    const int64_t less = PeakLimit::smallest(least.largest_peak_bytes) - 1;
    const Answer found = any_step(*this, request(less, batches), PeakLimit(less));
    if (!found.feasible) break;
    IndexedPlan lower = in_whole_space(evaluator, found.plan);
    lower.prefetch = problem.space.prefetches.front();
    least = {true, lower, evaluator.largest_peak_bytes(lower)};
  }
  return least;
}

bool Searches::fits(int64_t limit_bytes, Batch batch) {
  if (limit_is_of_sum()) return run(request(limit_bytes, {batch}), batch.size, kAnyPlan).feasible;
  const LeastPeak& least = this->least({batch});
  return least.found && PeakLimit(limit_bytes).spare(least.largest_peak_bytes) >= 0;
}

const LeastPeak& Searches::least(const std::vector<Batch>& batches) {
  if (!least_ || least_->first != batches) least_ = {batches, least_peak(*this, request(0, batches))};
  return least_->second;
}

}  // namespace osdp::search
