#include "search/treatments.hpp"

#include <algorithm>
#include <limits>

namespace osdp::search {
namespace {

// What one way costs at least, slot by slot.
struct WayCost {
  double all = 0;                          // of the whole way
  std::vector<std::vector<double>> extra;  // [slot][option]: above the slot's cheapest
};

WayCost cost_of(const Series& series, const Series::Segment& segment, const Series::Way& way,
                const PhasePrices& prices) {
  WayCost cost;
  const bool again = way.way != Recompute::None;
  cost.all = static_cast<double>(way.time);
  if (again) cost.all += prices.from(segment.first) * static_cast<double>(way.input);
  for (size_t p = 0; p < way.slots.size(); ++p) {
    const size_t i = segment.first + p;
    const double here = prices.of(i, i + 1), from = prices.from(i), before = prices.before(i);
    const double inside = again ? prices.of(i, segment.end) : from;
    cost.all += inside * static_cast<double>(series.saved(segment.kind, p));
    auto& extra = cost.extra.emplace_back();
    double least = std::numeric_limits<double>::infinity();
    for (const SlotOption& o : way.slots[p]) {
      extra.push_back(static_cast<double>(o.time) + from * static_cast<double>(o.before) +
                      before * static_cast<double>(o.after) + here * static_cast<double>(o.own) +
                      (again ? inside : 0) * static_cast<double>(o.held));
      least = std::min(least, extra.back());
    }
    for (double& e : extra) e -= least;
    if (!extra.empty()) cost.all += least;
  }
  return cost;
}

// The first slots of a segment.
struct Part {
  int64_t time = 0, before = 0, after = 0, peak = 0, now = 0;  // now: before, and what is there only inside
  double extra = 0;
  uint32_t parent = 0;
  int candidate = -1;
};

bool no_worse(const Part& a, const Part& b) {
  return a.time <= b.time && a.before <= b.before && a.after <= b.after && a.peak <= b.peak && a.now <= b.now;
}

// Those that none of the last few before them is no worse than. `list` is sorted by time.
template <class T, class NoWorse>
void drop_dominated(std::vector<T>& list, NoWorse no_worse, Stopwatch& watch) {
  constexpr size_t kLook = 8;
  size_t kept = 0;
  for (size_t n = 0; n < list.size(); ++n) {
    const size_t last = kept > kLook ? kept - kLook : 0;
    bool out = false;
    for (size_t m = kept; m > last && !out; --m) out = no_worse(list[m - 1], list[n]);
    if (out) continue;
    if (kept != n) list[kept] = std::move(list[n]);
    ++kept;
  }
  watch.spent(static_cast<int64_t>(kLook * list.size()));
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(kept), list.end());
}

bool add_way(const Series& series, const Series::Segment& segment, const Series::Way& way,
             const WayCost& cost, double allowance, size_t most, Stopwatch& watch,
             std::vector<Treatment>& list) {
  const bool again = way.way != Recompute::None;
  std::vector<std::vector<Part>> parts(1);
  Part& start = parts[0].emplace_back();
  start.time = way.time;
  start.before = start.now = way.input;
  start.peak = -kLargestSum;
  for (size_t p = 0; p < way.slots.size(); ++p) {
    std::vector<Part> next;
    const int64_t saved = series.saved(segment.kind, p);
    const auto extend = [&](size_t parent, const SlotOption& o, double extra) {
      Part x = parts[p][parent];
      x.extra += extra;
      if (x.extra > allowance) return;
      x.time += o.time;
      x.before += o.before + (again ? 0 : saved);
      x.now += o.before + saved + o.held;
      x.peak = std::max(x.peak + o.after, x.now + o.own);
      x.after += o.after;
      x.parent = static_cast<uint32_t>(parent);
      x.candidate = o.candidate;
      next.push_back(x);
    };
    for (size_t n = 0; n < parts[p].size(); ++n) {
      if (way.slots[p].empty()) {
        extend(n, {-1, 0, 0, 0, 0, 0}, 0);
      }
      for (size_t k = 0; k < way.slots[p].size(); ++k) extend(n, way.slots[p][k], cost.extra[p][k]);
      if (next.size() > 16 * most || watch.spent(static_cast<int64_t>(5 * way.slots[p].size()))) return false;
    }
    if (way.slots[p].size() > 1) {
      std::sort(next.begin(), next.end(), [](const Part& a, const Part& b) {
        return a.time != b.time ? a.time < b.time : a.before + a.after + a.peak < b.before + b.after + b.peak;
      });
      drop_dominated(next, no_worse, watch);
    }
    if (next.size() > most) return false;
    parts.push_back(std::move(next));
  }
  for (const Part& last : parts.back()) {
    Treatment& t = list.emplace_back();
    t.time = last.time, t.before = last.before, t.after = last.after, t.peak = last.peak;
    t.way = way.way;
    t.choices.assign(way.slots.size(), -1);
    const Part* part = &last;
    for (size_t p = way.slots.size(); p-- > 0;) {
      t.choices[p] = part->candidate;
      part = &parts[p][part->parent];
    }
  }
  return true;
}

}  // namespace

PhasePrices::PhasePrices(const std::vector<double>& prices) : sums_(prices.size() + 1, 0) {
  for (size_t j = 0; j < prices.size(); ++j) sums_[j + 1] = sums_[j] + prices[j];
}

double least_cost(const Series& series, const Series::Segment& segment, const PhasePrices& prices) {
  double least = std::numeric_limits<double>::infinity();
  for (const Series::Way& way : series.ways(segment.kind)) {
    least = std::min(least, cost_of(series, segment, way, prices).all);
  }
  return least;
}

bool list_treatments(const Series& series, const Series::Segment& segment, const PhasePrices& prices,
                     double allowance, size_t most, Stopwatch& watch, std::vector<Treatment>& list) {
  list.clear();
  std::vector<WayCost> costs;
  double least = std::numeric_limits<double>::infinity();
  for (const Series::Way& way : series.ways(segment.kind)) {
    costs.push_back(cost_of(series, segment, way, prices));
    least = std::min(least, costs.back().all);
  }
  for (size_t w = 0; w < costs.size(); ++w) {
    const double left = allowance - (costs[w].all - least);
    if (left < 0) continue;
    if (!add_way(series, segment, series.ways(segment.kind)[w], costs[w], left, most, watch, list))
      return false;
  }
  std::sort(list.begin(), list.end(), [](const Treatment& a, const Treatment& b) {
    return a.time != b.time ? a.time < b.time : a.before + a.after + a.peak < b.before + b.after + b.peak;
  });
  drop_dominated(
      list,
      [](const Treatment& a, const Treatment& b) {
        return a.time <= b.time && a.before <= b.before && a.after <= b.after && a.peak <= b.peak;
      },
      watch);
  return !watch.stopped();
}

}  // namespace osdp::search
