#include "search/planner/searches.hpp"

#include <algorithm>
#include <limits>

#include "search/planner/selection.hpp"
#include "search/planner/subspaces.hpp"
#include "search/planner/whole_limit.hpp"

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

Schedule Searches::run(const Request& request, double gap, int64_t work) {
  Budget budget;
  if (limit_s_ > 0) budget.time_limit_s = std::max(left_s(), kLeastShare * limit_s_);
  budget.interrupted = [this] { return interrupted(); };
  budget.gap = gap;
  budget.state_bytes = kStateBytes;
  budget.tell_gap = wish_.tell_gap;
  if (work == 0 && counts_work(request, wish_)) work = wish_.work;
  if (work > 0) budget.work = &work;
  return schedule(planner_.model(), request, budget);
}

bool Searches::limit_is_of_sum() const {
  const Request request = planner_.request();
  return wish_.limit_is_of_sum || request.paper() || request.device.ranks == 1;
}

Answer Searches::best_plan(int64_t limit_bytes, const std::vector<Batch>& batches) {
  const WholeLimit limit(limit_bytes, limit_is_of_sum());
  Request problem = request(limit_bytes, batches);
  problem.find_smallest = true;
  Answer found = select_plan(*this, problem, limit);
  if (limit.of_sum()) return found;
  const auto keeps = [&](const Answer& a) {
    return a.feasible && limit.spare(a.peak_bytes, a.largest_peak_bytes) >= 0;
  };
  if (!keeps(found)) {
    const Answer least = least_by_sum(batches, found.smallest_limit_bytes);
    if (!keeps(least)) return best_of_parts(limit_bytes, batches, infeasible(least));
    problem.limit_bytes = least.sum_limit_bytes;
    found = select_plan(*this, problem, limit);
    if (!keeps(found)) found = least;
    if (found.sum_limit_bytes < limit_bytes) found.optimal = found.proven = false;
  }
  found.limit_bytes = limit_bytes;
  return found;
}

Answer Searches::best_of_parts(int64_t limit_bytes, const std::vector<Batch>& batches, const Answer& none) {
  Answer best = none;
  Wish wish = wish_;
  for (Request& part : subspaces(planner_.request())) {
    if (over()) break;
    if (limit_s_ > 0) wish.time_limit_s = std::max(left_s(), kLeastShare * limit_s_);
    const Planner planner(planner_.model(), std::move(part), planner_.player().manner());
    Answer found = Searches(planner, wish, ask_).best_plan(limit_bytes, batches);
    if (found.feasible
            ? !best.feasible || found.throughput(1) > best.throughput(1)
            : !best.feasible && found.smallest_limit_bytes > 0 &&
                  (best.smallest_limit_bytes == 0 || found.smallest_limit_bytes < best.smallest_limit_bytes))
      best = std::move(found);
  }
  if (!best.feasible) return best;
  wish.limit_bytes = limit_bytes, wish.batches = batches;
  Answer found = in_whole_space(planner_, request(limit_bytes, batches), best);
  if (wish_.replay > 0) found.step_bound_s_per_sample = planner_.step_bound_s_per_sample(wish, ask_);
  return found;
}

Answer Searches::infeasible(const Answer& least) {
  Answer none;
  if (least.feasible)
    none.smallest_limit_bytes = WholeLimit::smallest(least.peak_bytes, least.largest_peak_bytes);
  return none;
}

bool Searches::fits(int64_t limit_bytes, Batch batch) {
  const WholeLimit limit(limit_bytes, limit_is_of_sum());
  Request request = this->request(limit_bytes, {batch});
  request.find_smallest = !limit.of_sum();
  const Schedule found = run(request, kAnyPlan);
  if (found.feasible || limit.of_sum() || found.smallest_limit_bytes == 0) return found.feasible;
  const Answer least = plan_of_sum({batch}, found.smallest_limit_bytes);
  return least.feasible && limit.spare(least.peak_bytes, least.largest_peak_bytes) >= 0;
}

Answer Searches::plan_of_sum(const std::vector<Batch>& batches, int64_t sum_limit_bytes) {
  return optimum(*this, request(sum_limit_bytes, batches), WholeLimit(sum_limit_bytes, true));
}

const Answer& Searches::least_by_sum(const std::vector<Batch>& batches, int64_t smallest_sum_bytes) {
  if (least_ && least_->first == batches) return least_->second;
  if (smallest_sum_bytes == 0) {
    Request smallest = request(1, batches);
    smallest.find_smallest = true;
    smallest_sum_bytes = run(smallest).smallest_limit_bytes;
  }
  least_ = {batches, smallest_sum_bytes > 0 ? plan_of_sum(batches, smallest_sum_bytes) : Answer{}};
  return least_->second;
}

}  // namespace osdp::search
