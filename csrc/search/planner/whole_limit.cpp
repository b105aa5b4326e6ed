// Note [The whole limit]
// A search holds a sum over operators against its limit, so that its optimum can be proven: the largest phase
// with room for the largest transients (Note [Reserve]). What a plan's own step can hold
// (Planner::largest_peak) is mostly less, by a third where one large operator is sharded. So a plan is
// searched under a larger limit of that sum, as long as its own peak keeps the limit that was asked for;
// where no sum fits, under the smallest that any plan has. What is proven then is of more plans, not fewer:
// none whose sum is within `sum_limit_bytes` is faster. Such plans leave kMargin of the limit free, for what
// libraries of kernels allocate for themselves (at most 0.7% of the peaks measured). Rarely a peak is more
// than the sum, which leaves out copies of gradients whose rows ranks cannot share evenly, and a frozen unit
// in use around a recomputed block: then under a smaller one.
#include <algorithm>
#include <limits>

#include "search/planner/searches.hpp"

namespace osdp::search {
namespace {

constexpr int kMostRaises = 6, kMostCuts = 5;  // searches for one plan, beside the first
constexpr int64_t kFirstRaise = 16;            // one part in so many of the limit, also where a plan fills it
constexpr int64_t kMargin = 100;               // one part in so many of the limit
constexpr int64_t kLeastRoom = 50;             // the same: for less it is not searched again

// What a plan whose sum is over the limit may hold; and the smallest limit under which it may hold `peak`.
int64_t inside(int64_t limit) { return limit - limit / kMargin; }
int64_t around(int64_t peak) {
  int64_t limit = peak + peak / (kMargin - 1);
  while (inside(limit) < peak) ++limit;
  return limit;
}

// A plan whose sum is over the limit leaves the margin free.
bool keeps(const Answer& plan, int64_t limit) {
  return plan.largest_peak_bytes <= (plan.peak_bytes <= limit ? limit : inside(limit));
}

// By samples in a second of the played step.
bool slower(const Answer& a, const Answer& b) { return a.throughput(1) < b.throughput(1); }

}  // namespace

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
  Answer found = fastest_by_sum(limit_bytes, batches, true);
  if (limit_is_of_sum()) return found;
  const int64_t smallest_sum = found.smallest_limit_bytes;
  found = cut(std::move(found), limit_bytes, batches);
  if (!found.feasible) found = smallest(limit_bytes, batches, smallest_sum);
  if (found.feasible) found = raised(std::move(found), limit_bytes, batches);
  found.limit_bytes = limit_bytes;
  return found;
}

Answer Searches::smallest(int64_t limit_bytes, const std::vector<Batch>& batches,
                          int64_t smallest_sum_bytes) {
  if (smallest_sum_bytes == 0) smallest_sum_bytes = fastest_by_sum(1, batches, true).smallest_limit_bytes;
  Answer none;
  none.smallest_limit_bytes = smallest_sum_bytes;
  if (smallest_sum_bytes == 0) return none;
  const Answer& least = least_by_sum(batches, smallest_sum_bytes);
  if (!least.feasible) return none;
  if (keeps(least, limit_bytes)) {
    Answer found = least;
    // Cuts may have left out faster plans of larger sums.
    if (found.sum_limit_bytes < limit_bytes) found.optimal = found.proven = false;
    return found;
  }
  none.smallest_limit_bytes =
      std::min(std::max(least.peak_bytes, least.largest_peak_bytes), around(least.largest_peak_bytes));
  return none;
}

bool Searches::limit_is_of_sum() const {
  const Request request = planner_.request();
  return wish_.limit_is_of_sum || request.paper() || request.device.ranks == 1;
}

bool Searches::fits(int64_t limit_bytes, Batch batch) {
  constexpr double kAnyPlan = 1e18;  // a gap with which the first plan ends a search
  Request request = this->request(limit_bytes, {batch});
  request.find_smallest = !limit_is_of_sum();
  const Schedule found = run(request, kAnyPlan);
  if (found.feasible || limit_is_of_sum() || found.smallest_limit_bytes == 0) return found.feasible;
  const Answer least = best_by_objective(found.smallest_limit_bytes, {batch});
  return least.feasible && keeps(least, limit_bytes);
}

Answer Searches::cut(Answer found, int64_t limit_bytes, const std::vector<Batch>& batches) {
  for (int tries = 0; found.feasible && found.largest_peak_bytes > limit_bytes; ++tries) {
    const int64_t less = found.sum_limit_bytes - (found.largest_peak_bytes - limit_bytes);
    found = tries < kMostCuts && less > 0 ? fastest_by_sum(less, batches, false) : Answer{};
    found.optimal = found.proven = false;
  }
  return found;
}

Answer Searches::raised(Answer found, int64_t limit_bytes, const std::vector<Batch>& batches) {
  const int64_t least_room = limit_bytes / kLeastRoom;
  int64_t too_large = std::numeric_limits<int64_t>::max();  // a limit of the sum whose plan does not fit
  for (int tries = 0; tries < kMostRaises && !over(); ++tries) {
    int64_t room = inside(limit_bytes) - found.largest_peak_bytes;
    if (tries == 0 && room < least_room) room = limit_bytes / kFirstRaise;
    if (room < least_room || found.prices.empty()) break;
    int64_t next = found.sum_limit_bytes + std::min(room, kLargestSum - found.sum_limit_bytes);
    if (next >= too_large) next = found.sum_limit_bytes + (too_large - found.sum_limit_bytes) / 2;
    if (next - found.sum_limit_bytes < least_room / 2) break;
    Answer more = fastest_by_sum(next, batches, false);
    if (more.feasible && keeps(more, limit_bytes) && !slower(more, found)) {
      found = std::move(more);
    } else {
      too_large = next;
    }
  }
  return found;
}

}  // namespace osdp::search
