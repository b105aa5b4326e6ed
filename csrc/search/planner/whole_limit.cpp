// Note [The whole limit]
// So that its optimum can be proven, a search compares its limit with a sum over operators: the largest phase
// with the reserve for the largest transients (Note [Reserve]). The peak of a plan's own step
// (Planner::largest_peak) is usually smaller, by a third if one large operator is sharded. So the search is
// repeated under a larger limit of that sum, as long as the plan's own peak keeps the requested limit; if no
// sum fits, under the smallest feasible one. The proof then covers more plans, not fewer: none whose sum is
// within `sum_limit_bytes` is faster. Such plans leave one part in kMargin of the limit free, for memory that
// kernel libraries allocate themselves (at most 0.7% of the peaks measured). Rarely a peak exceeds the sum,
// which does not include copies of gradients whose rows the ranks cannot share evenly, nor a frozen unit in
// use around a recomputed block. Plans whose peak exceeds the limit are passed over (planner/selection.cpp);
// if only such were found, the plan of the smallest sum is the first, and the limit of the sum rises from
// there.
#include <algorithm>
#include <limits>

#include "search/planner/searches.hpp"

namespace osdp::search {
namespace {

constexpr int kMostRaises = 6;       // additional searches for one plan
constexpr int64_t kFirstRaise = 16;  // first raise of a plan that fills the limit: limit / this
constexpr int64_t kMargin = 100;     // the margin is limit / this
constexpr int64_t kLeastRoom = 50;   // further searches need at least room of limit / this

// The largest peak allowed to a plan whose sum exceeds the limit; and the smallest limit that allows `peak`.
int64_t inside(int64_t limit) { return limit - limit / kMargin; }
int64_t around(int64_t peak) {
  int64_t limit = peak + peak / (kMargin - 1);
  while (inside(limit) < peak) ++limit;
  return limit;
}

// A plan whose sum exceeds the limit must leave the margin free.
bool may_peak_at(int64_t largest_peak, int64_t sum, int64_t limit) {
  return largest_peak <= (sum <= limit ? limit : inside(limit));
}
bool keeps_limit(const Answer& plan, int64_t limit) {
  return may_peak_at(plan.largest_peak_bytes, plan.peak_bytes, limit);
}

// Compares samples per second of the simulated step.
bool slower(const Answer& a, const Answer& b) { return a.throughput(1) < b.throughput(1); }

}  // namespace

bool Searches::keeps(const PlainPlan& plan, int64_t peak_bytes, int64_t limit_bytes) const {
  if (limit_is_of_sum()) return peak_bytes <= limit_bytes;
  return may_peak_at(planner_.largest_peak(plan, peak_bytes), peak_bytes, limit_bytes);
}

const Answer& Searches::least_by_sum(const std::vector<Batch>& batches, int64_t smallest_sum_bytes) {
  const auto alike = [&](const Batch& a, const Batch& b) {
    return a.size == b.size && a.accumulation == b.accumulation;
  };
  if (!least_ ||
      !std::equal(batches.begin(), batches.end(), least_->first.begin(), least_->first.end(), alike))
    least_ = {batches, best_by_objective(smallest_sum_bytes, batches)};
  return least_->second;
}

Answer Searches::best_plan(int64_t limit_bytes, const std::vector<Batch>& batches) {
  Answer found = fastest_by_sum(limit_bytes, limit_bytes, batches, true);
  if (limit_is_of_sum()) return found;
  if (!found.feasible || !keeps_limit(found, limit_bytes))
    found = smallest(limit_bytes, batches, found.smallest_limit_bytes);
  if (found.feasible) found = raised(std::move(found), limit_bytes, batches);
  if (found.sum_limit_bytes < limit_bytes) found.optimal = found.proven = false;
  found.limit_bytes = limit_bytes;
  return found;
}

Answer Searches::smallest(int64_t limit_bytes, const std::vector<Batch>& batches,
                          int64_t smallest_sum_bytes) {
  if (smallest_sum_bytes == 0)
    smallest_sum_bytes = fastest_by_sum(1, limit_bytes, batches, true).smallest_limit_bytes;
  Answer none;
  none.smallest_limit_bytes = smallest_sum_bytes;
  if (smallest_sum_bytes == 0) return none;
  const Answer& least = least_by_sum(batches, smallest_sum_bytes);
  if (!least.feasible) return none;
  if (keeps_limit(least, limit_bytes)) return least;
  none.smallest_limit_bytes =
      std::min(std::max(least.peak_bytes, least.largest_peak_bytes), around(least.largest_peak_bytes));
  return none;
}

bool Searches::limit_is_of_sum() const {
  const Request request = planner_.request();
  return wish_.limit_is_of_sum || request.paper() || request.device.ranks == 1;
}

bool Searches::fits(int64_t limit_bytes, Batch batch) {
  constexpr double kAnyPlan = 1e18;  // a gap at which any plan ends the search
  Request request = this->request(limit_bytes, {batch});
  request.find_smallest = !limit_is_of_sum();
  const Schedule found = run(request, kAnyPlan);
  if (found.feasible || limit_is_of_sum() || found.smallest_limit_bytes == 0) return found.feasible;
  const Answer least = best_by_objective(found.smallest_limit_bytes, {batch});
  return least.feasible && keeps_limit(least, limit_bytes);
}

Answer Searches::raised(Answer found, int64_t limit_bytes, const std::vector<Batch>& batches) {
  const int64_t least_room = limit_bytes / kLeastRoom;
  int64_t too_large = std::numeric_limits<int64_t>::max();  // a limit of the sum that gave no better plan
  for (int tries = 0; tries < kMostRaises && !over(); ++tries) {
    int64_t room = inside(limit_bytes) - found.largest_peak_bytes;
    if (tries == 0 && room < least_room) room = limit_bytes / kFirstRaise;
    if (room < least_room || found.prices.empty()) break;
    int64_t next = found.sum_limit_bytes + std::min(room, kLargestSum - found.sum_limit_bytes);
    if (next >= too_large) next = found.sum_limit_bytes + (too_large - found.sum_limit_bytes) / 2;
    if (next - found.sum_limit_bytes < least_room / 2) break;
    Answer more = fastest_by_sum(next, limit_bytes, batches, false);
    if (more.feasible && keeps_limit(more, limit_bytes) && !slower(more, found) &&
        (more.proven || !more.prices.empty())) {
      found = std::move(more);
    } else {
      too_large = next;
    }
  }
  return found;
}

}  // namespace osdp::search
