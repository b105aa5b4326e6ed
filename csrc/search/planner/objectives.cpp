#include "search/planner/objectives.hpp"

#include <algorithm>
#include <cmath>

#include "search/planner/additive_search.hpp"
#include "search/planner/peak_limit.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

constexpr int64_t kFirstPlanWork = 10'000'000;  // usually enough to find a feasible plan if there is one
constexpr double kSameThroughput = 1 - 1e-4;
constexpr int64_t kMostOfLimit = 8;  // largest limit considered, as a multiple of the wish's

// The largest n from 1 to `most` with holds(n), which must be monotone; 1 if there is none.
template <typename Holds>
int64_t last_true(const Holds& holds, int64_t most) {
  int64_t low = 1, high = 2;
  while (high <= most && holds(high)) low = high, high *= 2;
  high = std::min(high, most + 1);
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (holds(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

Answer least_memory(Searches& searches) {
  const Wish& wish = searches.wish();
  const int64_t ranks = searches.planner().request().device.ranks;
  Answer known = searches.best_plan(wish.limit_bytes, wish.batches);
  if (!known.feasible || known.throughput(ranks) < wish.at_least) return known;
  const auto kept_by = [&](const Answer& a) {
    return searches.limit_is_of_sum() ? a.limit_bytes : PeakLimit::smallest(a.peak_bytes);
  };
  const auto fast_enough = [&](const Answer& a) {
    return a.feasible && a.throughput(ranks) >= wish.at_least;
  };
  // Halves the interval until the search finds such a plan at `high`, and none at `low`. `found_at`: the
  // limit at which it found `known`; with `kept`, what that plan keeps is as good.
  int64_t found_at = wish.limit_bytes;
  const auto halve = [&](int64_t low, int64_t high, bool kept) {
    while (high - low > 1 && !searches.over()) {
      const int64_t middle = low + (high - low) / 2;
      Answer less = searches.best_plan(middle, wish.batches);
      if (!fast_enough(less)) {
        low = middle;
      } else {
        high = kept ? std::max(low + 1, std::min(middle, kept_by(less))) : middle;
        known = std::move(less), found_at = middle;
      }
    }
    return high;
  };
  const int64_t kept = halve(0, std::min(wish.limit_bytes, kept_by(known)), true);
  // At a limit that just keeps a plan a search may miss it; a repeated one must find what this one returns.
  if (kept < found_at && !searches.over()) {
    Answer again = searches.best_plan(kept, wish.batches);
    if (fast_enough(again)) {
      known = std::move(again), found_at = kept;
    } else {
      halve(kept, found_at, false);
    }
  }
  known.limit_bytes = found_at;
  return known;
}

Batch largest_batch(Searches& searches) {
  const Wish& wish = searches.wish();
  const auto fits = [&](Batch batch) { return !searches.over() && searches.fits(wish.limit_bytes, batch); };
  if (wish.batches.empty()) return {last_true([&](int64_t n) { return fits({n, 1}); }, kMostBatch), 1};
  std::vector<Batch> falling = wish.batches;
  std::sort(falling.begin(), falling.end(), [](Batch a, Batch b) { return a.size > b.size; });
  for (Batch batch : falling)
    if (fits(batch)) return batch;
  return falling.back();
}

Answer Planner::any_plan(const Wish& wish, const Interrupted& interrupted) const {
  Wish soon = wish;
  soon.objective = Objective::Throughput;
  soon.time_limit_s = 0, soon.work = kFirstPlanWork;  // the caller's time may be over
  Searches searches(*this, soon, interrupted);
  const Request problem = searches.request(wish.limit_bytes, wish.batches);
  if (searches.limit_is_of_sum()) {
    Answer found = additive_optimum(searches, problem);
    if (found.feasible) return found;
    soon.time_limit_s = wish.time_limit_s, soon.work = wish.work;
    Searches longer(*this, soon, interrupted);
    return additive_optimum(longer, problem);
  }
  const auto keeps = [&](const LeastPeak& least) {
    return least.found && PeakLimit(wish.limit_bytes).spare(least.largest_peak_bytes) >= 0;
  };
  soon.work = wish.work;  // as much as the search that found the limit had
  Searches longer(*this, soon, interrupted);
  const bool at_once = keeps(searches.least(wish.batches));
  const LeastPeak& least = at_once ? searches.least(wish.batches) : longer.lowest(wish.batches);
  Answer a;
  a.limit_bytes = wish.limit_bytes;
  if (!keeps(least)) return a;
  PlanEvaluator own(problem, player_, PeakLimit(wish.limit_bytes).most_bytes());
  a.feasible = true, a.plan = own.plain(least.plan), a.played = own.play(least.plan);
  a.peak_bytes = own.largest_peak_bytes(least.plan);
  return a;
}

UsefulLimits Planner::useful_limits(const Wish& wish, const Interrupted& interrupted) const {
  const auto at = [&](int64_t limit) {
    Wish there = wish;
    there.limit_bytes = limit;
    return search(there, interrupted);
  };
  UsefulLimits limits{std::max<int64_t>(1, at(0).smallest_limit_bytes), 0};
  const auto throughput = [&](int64_t limit) {
    const Answer found = at(limit);
    return found.feasible ? found.throughput(1) : 0;
  };
  int64_t low = limits.least, high = kMostOfLimit * std::min(wish.limit_bytes, kLargestSum / kMostOfLimit);
  high = std::max(high, 2 * std::min(low, kLargestSum / 2));
  const double best = throughput(high);
  while (static_cast<double>(high) > static_cast<double>(low) * 1.01) {
    const auto middle = static_cast<int64_t>(std::sqrt(static_cast<double>(high) * static_cast<double>(low)));
    (throughput(middle) >= best * kSameThroughput ? high : low) = middle;
  }
  limits.most = high;
  return limits;
}

}  // namespace osdp::search
