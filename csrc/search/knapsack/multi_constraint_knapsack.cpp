// Note [Several limits]
// As in knapsack/solve_exact.cpp, but memory is a vector: at the relaxation's prices, a choice's reduced cost
// is the amount by which it raises the bound. Plans of small reduced cost are enumerated as partial sums over
// kinds, dropping those that another one dominates in time and in every row. Each round allows more reduced
// cost; a completed round proves the bound up to its allowance. Prices are rounded to multiples of 2^-24, so
// that all sums are integers.
//
// Two techniques keep the lists short. With the remaining choices most rows are implied by another one, and
// only the others are compared (needed_rows). And a partial sum is also bounded at other prices: lower ones
// are stronger if it leaves the remaining kinds more memory than they can use, higher ones if it leaves less.
#include "search/knapsack/multi_constraint_knapsack.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "search/problem/dominance.hpp"

namespace osdp::search {
namespace {

constexpr int kShift = 24;
constexpr size_t kMostSums = 50000;  // in a list
constexpr size_t kBeam = 100;
constexpr size_t kMostOfAll = 400000;  // in all lists together

// One assignment of choices to a kind's operators, or a sum over several kinds. kRows is a template parameter
// since there are usually few rows.
template <size_t kRows>
struct PartialSum {
  int64_t time = 0, reduced = 0;
  std::array<int64_t, kRows> bytes{};  // by row
  uint32_t parent = 0, item = 0;       // of an item: `item` is the index of its counts
  double low = 0;                      // the highest lower bound computed for it
};

// Drops sums that another one dominates in time and in every row. The last kept ones dominate most often;
// checking all of a long list costs more than it saves.
template <class Sum>
void drop_dominated(std::vector<Sum>& list, const std::vector<size_t>& rows, Stopwatch& watch) {
  constexpr size_t kLook = 32;
  std::sort(list.begin(), list.end(), [](const Sum& a, const Sum& b) {
    return a.time != b.time ? a.time < b.time : a.bytes < b.bytes;
  });
  const auto no_worse = [&](const Sum& a, const Sum& b) {
    return std::all_of(rows.begin(), rows.end(), [&](size_t j) { return a.bytes[j] <= b.bytes[j]; });
  };
  search::drop_dominated(list, no_worse, kLook);
  list.shrink_to_fit();
  watch.spent(static_cast<int64_t>(10 * kLook * list.size()));
}

template <size_t kRows>
class Search {
  using Sum = PartialSum<kRows>;

 public:
  Search(const MultiConstraintKnapsack& problem, const std::vector<double>& prices, int64_t cutoff,
         Stopwatch& watch)
      : problem_(problem), cutoff_(cutoff), watch_(watch), rows_(problem.limits.size()) {
    int128 bound = 0;
    std::vector<int128> price(rows_);
    prices_.assign(prices.begin(), prices.begin() + static_cast<std::ptrdiff_t>(rows_));
    for (size_t j = 0; j < rows_; ++j) {
      all_rows_.push_back(j);
      price[j] = std::llround(std::min(prices[j], 1e9) * (1 << kShift));
      bound -= price[j] * problem.limits[j];
    }
    for (const auto& kind : problem.kinds) {
      std::vector<int128> cost;
      for (const auto& c : kind.choices) {
        cost.push_back(static_cast<int128>(c.time) << kShift);
        for (size_t j = 0; j < rows_; ++j) cost.back() += price[j] * c.bytes[j];
      }
      const int128 least = *std::min_element(cost.begin(), cost.end());
      auto& reduced = reduced_.emplace_back();
      for (int128 v : cost) reduced.push_back(static_cast<int64_t>((v - least) >> kShift));
      bound += least * kind.count;
      int64_t slowest = 0;
      for (const auto& c : kind.choices) slowest = std::max(slowest, c.time);
      spread_ += kind.count * slowest;
    }
    bound_ = static_cast<int64_t>(bound >> kShift);
    spread_ -= bound_;
  }

  MultiConstraintSolution run() {
    MultiConstraintSolution s;
    s.lower_bound_ps = std::max<int64_t>(0, bound_);
    int64_t allowance = std::max<int64_t>(1, bound_ / 1'000'000);
    for (;; allowance = allowance > spread_ / 3 ? spread_ : allowance * 3) {
      allowance = std::min(allowance, cutoff_ - 1 - bound_);
      if (allowance < 0) return finish(s);
      bool whole = round(allowance);
      if (!whole && !watch_.stopped() && best_ == std::numeric_limits<int64_t>::max()) {
        const int64_t most = std::min(cutoff_ - 1 - bound_, spread_);
        for (int64_t wide = 4 * allowance; best_ == std::numeric_limits<int64_t>::max(); wide *= 4) {
          if (!round(std::min(wide, most), kBeam) || wide >= most) break;
        }
      }
      if (best_ < std::numeric_limits<int64_t>::max()) {
        s.time_ps = best_, s.counts = best_counts_;
        s.status = Status::Feasible;
        cutoff_ = std::min(cutoff_, best_);
      }
      if (!whole) {  // too many sums, or out of budget
        if (s.status == Status::Infeasible) s.status = Status::Feasible;
        return s;
      }
      s.lower_bound_ps = std::max(s.lower_bound_ps, std::min(bound_ + allowance + 1, cutoff_));
      if (allowance >= cutoff_ - 1 - bound_ || allowance >= spread_) return finish(s);
    }
  }

 private:
  MultiConstraintSolution finish(MultiConstraintSolution s) const {
    if (s.status == Status::Feasible) s.status = Status::Optimal, s.lower_bound_ps = s.time_ps;
    return s;
  }

  // All assignments of a kind's operators whose reduced cost is at most `allowance`. `counts` is indexed by
  // Sum::item.
  bool items_of(size_t k, int64_t allowance, std::vector<Sum>& items,
                std::vector<std::vector<int64_t>>& counts) {
    const auto& kind = problem_.kinds[k];
    const size_t n = kind.choices.size();
    items.clear();
    counts.clear();
    const size_t base =
        static_cast<size_t>(std::find(reduced_[k].begin(), reduced_[k].end(), 0) - reduced_[k].begin());
    std::vector<int64_t> left{kind.count}, reduced{0};
    counts.emplace_back(n, 0);
    for (size_t c = 0; c < n; ++c) {
      if (c == base || reduced_[k][c] > allowance) continue;
      const size_t before = counts.size();
      for (size_t i = 0; i < before; ++i) {
        for (int64_t x = 1; x <= left[i] && reduced[i] + x * reduced_[k][c] <= allowance; ++x) {
          counts.push_back(counts[i]);
          counts.back()[c] = x;
          left.push_back(left[i] - x);
          reduced.push_back(reduced[i] + x * reduced_[k][c]);
        }
        if (counts.size() > kMostSums) return false;
      }
      if (watch_.spent(static_cast<int64_t>(20 * (counts.size() - before)))) return false;
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      counts[i][base] = left[i];
      Sum s;
      s.reduced = reduced[i];
      s.item = static_cast<uint32_t>(i);
      for (size_t c = 0; c < n; ++c) {
        if (counts[i][c] == 0) continue;
        s.time += counts[i][c] * kind.choices[c].time;
        for (size_t j = 0; j < rows_; ++j) s.bytes[j] += counts[i][c] * kind.choices[c].bytes[j];
      }
      items.push_back(s);
    }
    drop_dominated(items, all_rows_, watch_);
    return !watch_.stopped();
  }

  // Rows that are not implied by others. For all items, row b exceeds row a by at least `apart`, so row a is
  // implied by row b if the limits differ by no more than that.
  std::vector<size_t> needed_rows(const std::vector<std::vector<Sum>>& items) const {
    std::vector<char> out(rows_, 0);
    for (size_t a = 0; a < rows_; ++a) {
      int128 largest = 0;
      for (const auto& list : items) {
        int64_t most = 0;
        for (const Sum& s : list) most = std::max(most, s.bytes[a]);
        largest += most;
      }
      out[a] = largest <= problem_.limits[a];
      for (size_t b = 0; b < rows_ && !out[a]; ++b) {
        if (a == b || out[b]) continue;
        int128 apart = 0;
        for (const auto& list : items) {
          int64_t least = std::numeric_limits<int64_t>::max();
          for (const Sum& s : list) least = std::min(least, s.bytes[b] - s.bytes[a]);
          apart += least;
        }
        out[a] = apart >= problem_.limits[b] - problem_.limits[a];
      }
    }
    std::vector<size_t> needed;
    for (size_t j = 0; j < rows_; ++j) {
      if (!out[j]) needed.push_back(j);
    }
    return needed;
  }

  // Alternative prices, and at each the least cost of the remaining kinds minus the price of all limits.
  struct Views {
    std::vector<std::vector<double>> prices;  // [view][row]
    std::vector<std::vector<double>> rest;    // [depth][view]
  };
  Views views_of(const std::vector<std::vector<Sum>>& items, const std::vector<size_t>& order,
                 const std::vector<size_t>& needed) const {
    Views views;
    std::vector<double> base(rows_, 0);
    for (size_t j : needed) base[j] = prices_[j];
    for (double scale : {1.0, 0.0, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.5, 2.0, 4.0}) {
      views.prices.push_back(base);
      for (double& p : views.prices.back()) p *= scale;
    }
    for (size_t j : needed) {
      if (base[j] == 0) continue;
      for (double scale : {0.0, 0.5, 0.8, 1.25, 2.0}) {
        views.prices.push_back(base);
        views.prices.back()[j] *= scale;
      }
    }
    views.rest.assign(order.size() + 1, std::vector<double>(views.prices.size(), 0));
    for (size_t v = 0; v < views.prices.size(); ++v) {
      double sum = 0;
      for (size_t j : needed) sum -= views.prices[v][j] * static_cast<double>(problem_.limits[j]);
      views.rest[order.size()][v] = sum;
      for (size_t d = order.size(); d-- > 0;) {
        double least = std::numeric_limits<double>::infinity();
        for (const Sum& s : items[order[d]]) least = std::min(least, cost_of(s, views.prices[v], needed));
        views.rest[d][v] = views.rest[d + 1][v] + least;
      }
    }
    return views;
  }
  static double cost_of(const Sum& s, const std::vector<double>& prices, const std::vector<size_t>& needed) {
    double cost = static_cast<double>(s.time);
    for (size_t j : needed) cost += prices[j] * static_cast<double>(s.bytes[j]);
    return cost;
  }
  // Whether at some prices the bound of a sum over the first `depth` kinds exceeds `most`. The margin covers
  // rounding.
  bool hopeless(const Views& views, const std::vector<size_t>& needed, Sum& s, size_t depth, double most) {
    s.low = 0;
    const auto beyond = [&](size_t v) {
      const double cost = cost_of(s, views.prices[v], needed), rest = views.rest[depth][v];
      s.low = std::max(s.low, cost + rest);
      return cost + rest > most + 4 + 1e-13 * (cost + std::abs(rest));
    };
    if (beyond(likely_)) return true;
    for (size_t v = 0; v < views.prices.size(); ++v) {
      if (!beyond(v)) continue;
      likely_ = v;
      return true;
    }
    return false;
  }

  // Returns false if it was cut short. `beam`: keeps only that many sums of a list, those with the lowest
  // bounds, which finds a plan but proves nothing.
  bool round(int64_t allowance, size_t beam = 0) {
    const size_t n = problem_.kinds.size();
    std::vector<std::vector<Sum>> items(n);
    std::vector<std::vector<std::vector<int64_t>>> counts(n);
    for (size_t k = 0; k < n; ++k) {
      if (!items_of(k, allowance, items[k], counts[k])) return false;
    }
    std::vector<size_t> order(n);
    for (size_t k = 0; k < n; ++k) order[k] = k;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return items[a].size() < items[b].size(); });
    // The least memory of the remaining kinds, by row.
    std::vector<std::vector<int64_t>> rest(n + 1, std::vector<int64_t>(rows_, 0));
    for (size_t d = n; d-- > 0;) {
      for (size_t j = 0; j < rows_; ++j) {
        int64_t least = std::numeric_limits<int64_t>::max();
        for (const Sum& s : items[order[d]]) least = std::min(least, s.bytes[j]);
        rest[d][j] = rest[d + 1][j] + least;
      }
    }
    const std::vector<size_t> needed = needed_rows(items);
    for (auto& list : items) {
      drop_dominated(list, needed, watch_);
      std::stable_sort(list.begin(), list.end(),
                       [](const Sum& a, const Sum& b) { return a.reduced < b.reduced; });
    }
    if (watch_.stopped()) return false;
    const Views views = views_of(items, order, needed);
    likely_ = 0;
    size_t of_all = 0;
    std::vector<std::vector<Sum>> lists(1);
    lists[0].emplace_back();
    for (size_t d = 0; d < n; ++d) {
      std::vector<Sum> next;
      for (size_t a = 0; a < lists[d].size(); ++a) {
        for (size_t i = 0; i < items[order[d]].size(); ++i) {
          const Sum &x = lists[d][a], &y = items[order[d]][i];
          if (x.reduced + y.reduced > allowance) break;
          Sum s;
          s.time = x.time + y.time;
          s.reduced = x.reduced + y.reduced;
          s.parent = static_cast<uint32_t>(a), s.item = y.item;
          bool fits = true;
          for (size_t j : needed) {
            s.bytes[j] = x.bytes[j] + y.bytes[j];
            fits &= s.bytes[j] + rest[d + 1][j] <= problem_.limits[j];
          }
          if (!fits) continue;
          const int64_t most = std::min(bound_ + allowance, best_ - 1);
          if (s.time > most || hopeless(views, needed, s, d + 1, static_cast<double>(most))) continue;
          if (d + 1 == n && !next.empty()) {  // of complete plans only the fastest is needed
            if (s.time < next[0].time) next[0] = s;
          } else {
            next.push_back(s);
          }
        }
        if (next.size() > kMostSums || watch_.spent(static_cast<int64_t>(50 * items[order[d]].size())))
          return false;
      }
      if (beam > 0 && next.size() > 4 * beam) {
        std::nth_element(next.begin(), next.begin() + static_cast<std::ptrdiff_t>(4 * beam), next.end(),
                         [](const Sum& a, const Sum& b) { return a.low < b.low; });
        next.resize(4 * beam);
      }
      drop_dominated(next, needed, watch_);
      if (beam > 0 && next.size() > beam) {
        std::nth_element(next.begin(), next.begin() + static_cast<std::ptrdiff_t>(beam), next.end(),
                         [](const Sum& a, const Sum& b) { return a.low < b.low; });
        next.resize(beam);
      }
      of_all += next.size();
      if (watch_.stopped() || of_all > kMostOfAll) return false;
      lists.push_back(std::move(next));
      if (lists.back().empty()) return true;
    }
    size_t at = 0;  // the first is the fastest
    if (lists[n][0].time >= best_) return true;
    best_ = lists[n][0].time;
    best_counts_.assign(n, {});
    for (size_t d = n; d-- > 0;) {
      const Sum& s = lists[d + 1][at];
      best_counts_[order[d]] = counts[order[d]][s.item];
      at = s.parent;
    }
    return true;
  }

  const MultiConstraintKnapsack& problem_;
  size_t likely_ = 0;  // the view that last pruned a sum
  int64_t cutoff_;
  Stopwatch& watch_;
  const size_t rows_;
  std::vector<size_t> all_rows_;
  std::vector<double> prices_;
  std::vector<std::vector<int64_t>> reduced_;
  int64_t bound_ = 0;   // negative at bad prices
  int64_t spread_ = 0;  // no plan is slower than the bound by more than this
  int64_t best_ = std::numeric_limits<int64_t>::max();
  std::vector<std::vector<int64_t>> best_counts_;
};

}  // namespace

MultiConstraintSolution solve_multi_constraint(const MultiConstraintKnapsack& problem,
                                               const std::vector<double>& prices, int64_t cutoff_ps,
                                               Stopwatch& watch) {
  if (problem.limits.size() > kMostLimits) throw InvalidProblem("more than 24 memory limits");
  if (problem.limits.size() <= 4) return Search<4>(problem, prices, cutoff_ps, watch).run();
  if (problem.limits.size() <= 8) return Search<8>(problem, prices, cutoff_ps, watch).run();
  return Search<kMostLimits>(problem, prices, cutoff_ps, watch).run();
}

}  // namespace osdp::search
