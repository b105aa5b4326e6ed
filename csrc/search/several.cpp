// Note [Several limits]
// As in exact.cpp, with vectors for memories: at the relaxation's prices a choice's reduced cost is what it
// adds to the bound; plans with little of it are enumerated as partial sums over kinds, without those that
// another one dominates in time and in every row. Rounds allow more and more reduced cost; a round that ends
// proves the bound up to its allowance. Prices are rounded to fractions of 2^24, so that all sums are
// integers.
#include "search/several.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace osdp::search {
namespace {

constexpr int kShift = 24;
constexpr size_t kMostSums = 30000;

// How some operators choose, or a partial sum over several kinds.
struct Sum {
  int64_t time = 0, reduced = 0;
  std::array<int64_t, kMostLimits> bytes{};  // by row
  uint32_t parent = 0, item = 0;             // of an item: `item` is the index of its counts
};

bool dominates(const Sum& a, const Sum& b, size_t rows) {
  if (a.time > b.time) return false;
  for (size_t j = 0; j < rows; ++j) {
    if (a.bytes[j] > b.bytes[j]) return false;
  }
  return true;
}

void drop_dominated(std::vector<Sum>& list, size_t rows, Stopwatch& watch) {
  std::sort(list.begin(), list.end(), [](const Sum& a, const Sum& b) {
    return a.time != b.time ? a.time < b.time : a.bytes < b.bytes;
  });
  std::vector<Sum> kept;
  for (Sum& s : list) {
    bool out = false;
    // The nearest ones dominate most often; looking at all of a long list costs more than it saves.
    const size_t look = std::min<size_t>(kept.size(), 32);
    for (size_t n = 0; n < look && !out; ++n) out = dominates(kept[kept.size() - 1 - n], s, rows);
    if (!out) kept.push_back(s);
    if (watch.spent(static_cast<int64_t>(look))) break;
  }
  list.swap(kept);
}

class Search {
 public:
  Search(const SeveralRows& problem, const std::vector<double>& prices, int64_t cutoff, Stopwatch& watch)
      : problem_(problem), cutoff_(cutoff), watch_(watch), rows_(problem.limits.size()) {
    int128 bound = 0;
    std::vector<int128> price(rows_);
    for (size_t j = 0; j < rows_; ++j) {
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
      spread_ += kind.count * *std::max_element(reduced.begin(), reduced.end());
    }
    bound_ = static_cast<int64_t>(bound >> kShift);
    if (bound_ < 0) bound_ = 0;
  }

  SeveralSolution run() {
    SeveralSolution s;
    s.lower_bound_ps = bound_;
    int64_t allowance = std::max<int64_t>(1, bound_ / 1'000'000);
    for (;; allowance = allowance > spread_ / 4 ? spread_ : allowance * 4) {
      allowance = std::min(allowance, cutoff_ - 1 - bound_);
      if (allowance < 0) return finish(s);
      const bool whole = round(allowance);
      if (best_ < std::numeric_limits<int64_t>::max()) {
        s.time_ps = best_, s.counts = best_counts_;
        s.status = Status::Feasible;
        cutoff_ = std::min(cutoff_, best_);
      }
      if (!whole) {  // too many sums, or stopped
        if (s.status == Status::Infeasible) s.status = Status::Feasible;
        return s;
      }
      s.lower_bound_ps = std::max(s.lower_bound_ps, std::min(bound_ + allowance + 1, cutoff_));
      if (allowance >= cutoff_ - 1 - bound_ || allowance >= spread_) return finish(s);
    }
  }

 private:
  SeveralSolution finish(SeveralSolution s) const {
    if (s.status == Status::Feasible) s.status = Status::Optimal, s.lower_bound_ps = s.time_ps;
    return s;
  }

  // All ways in which a kind's operators may choose with so little reduced cost. counts: by Sum::item.
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
    drop_dominated(items, rows_, watch_);
    return !watch_.stopped();
  }

  // False where it was cut short.
  bool round(int64_t allowance) {
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
    // What the kinds to come hold at least, by row.
    std::vector<std::vector<int64_t>> rest(n + 1, std::vector<int64_t>(rows_, 0));
    for (size_t d = n; d-- > 0;) {
      for (size_t j = 0; j < rows_; ++j) {
        int64_t least = std::numeric_limits<int64_t>::max();
        for (const Sum& s : items[order[d]]) least = std::min(least, s.bytes[j]);
        rest[d][j] = rest[d + 1][j] + least;
      }
    }
    std::vector<std::vector<Sum>> lists(1);
    lists[0].emplace_back();
    for (size_t d = 0; d < n; ++d) {
      std::vector<Sum> next;
      for (size_t a = 0; a < lists[d].size(); ++a) {
        for (size_t i = 0; i < items[order[d]].size(); ++i) {
          const Sum &x = lists[d][a], &y = items[order[d]][i];
          if (x.reduced + y.reduced > allowance) continue;
          Sum s;
          s.time = x.time + y.time;
          s.reduced = x.reduced + y.reduced;
          s.parent = static_cast<uint32_t>(a), s.item = y.item;
          bool fits = true;
          for (size_t j = 0; j < rows_ && fits; ++j) {
            s.bytes[j] = x.bytes[j] + y.bytes[j];
            fits = s.bytes[j] + rest[d + 1][j] <= problem_.limits[j];
          }
          if (!fits) continue;
          if (d + 1 == n && !next.empty()) {  // only the fastest counts in the end
            if (s.time < next[0].time) next[0] = s;
          } else {
            next.push_back(s);
          }
        }
        if (next.size() > kMostSums || watch_.spent(static_cast<int64_t>(items[order[d]].size())))
          return false;
      }
      drop_dominated(next, rows_, watch_);
      if (watch_.stopped()) return false;
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

  const SeveralRows& problem_;
  int64_t cutoff_;
  Stopwatch& watch_;
  const size_t rows_;
  std::vector<std::vector<int64_t>> reduced_;
  int64_t bound_ = 0, spread_ = 0;
  int64_t best_ = std::numeric_limits<int64_t>::max();
  std::vector<std::vector<int64_t>> best_counts_;
};

}  // namespace

SeveralSolution solve_several(const SeveralRows& problem, const std::vector<double>& prices,
                              int64_t cutoff_ps, Stopwatch& watch) {
  if (problem.limits.size() > kMostLimits) throw InvalidProblem("more than 12 memory limits");
  return Search(problem, prices, cutoff_ps, watch).run();
}

}  // namespace osdp::search
