// Note [Sequence]
// Plans are put together from both ends. Of the first segments a partial plan has time, `before` and `peak`,
// of the last ones time, `after` and `peak` (Note [Series]); two that meet are a plan if
//   first.peak + last.after <= limit  and  first.before + last.peak <= limit,
// so two amounts of memory are all that either end has, however many phases bind. Partial plans that another
// one is no worse than in time and both amounts are dropped; so are those whose bound, at any of some prices,
// is beyond what is looked for: the other end costs at least so much at these prices, and the phases of one
// end count together, with the sum of their prices. Of first parts, an amount that nothing behind them could
// make too large is raised to the most that is harmless, so that it tells no plans apart. (Not of both ends:
// what is harmless to plain ones may not be to raised ones.) The shorter list grows next; where the two meet,
// one pass finds the best pair.
#include "search/sequence.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace osdp::search {
namespace {

constexpr size_t kMostTreatments = 4000;  // of one segment
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// A partial plan. `whole` counts against what is whole at the other end: a first part's peak against `after`,
// a last part's `after` against peak. `own` is the other amount: a first part's `before`, a last part's peak.
struct Part {
  int64_t time = 0, before = 0, peak = 0;  // of a last part: after, peak
  uint32_t parent = 0, item = 0;
};

// Per number of segments at one end and view: time + by_before * before + by_peak * peak + rest bounds the
// plan.
struct Outlook {
  double by_before = 0, by_peak = 0, rest = 0;
};

// What bounds all treatments of the segments at one end.
struct Extremes {
  int64_t least_after = 0, most_after = 0, least_before = 0, most_before = 0;
  int64_t least_peak = -kLargestSum, most_peak = -kLargestSum;

  // x followed by y.
  static Extremes join(const Extremes& x, const Extremes& y) {
    return {x.least_after + y.least_after,
            x.most_after + y.most_after,
            x.least_before + y.least_before,
            x.most_before + y.most_before,
            std::max(x.least_peak + y.least_after, x.least_before + y.least_peak),
            std::max(x.most_peak + y.most_after, x.most_before + y.most_peak)};
  }
};

Extremes extremes_of(const std::vector<Treatment>& list) {
  Extremes e{kNever, 0, kNever, 0, kNever, -kLargestSum};
  for (const Treatment& t : list) {
    e.least_after = std::min(e.least_after, t.after), e.most_after = std::max(e.most_after, t.after);
    e.least_before = std::min(e.least_before, t.before), e.most_before = std::max(e.most_before, t.before);
    e.least_peak = std::min(e.least_peak, t.peak), e.most_peak = std::max(e.most_peak, t.peak);
  }
  return e;
}

// Of parts with equal amounts only the fastest: equal segments in another order are the most common case.
class Unique {
 public:
  explicit Unique(std::vector<Part>& list) : list_(list), slots_(size_t{1} << 10, 0) {}
  void add(const Part& p) {
    if (2 * list_.size() >= slots_.size()) grow();
    uint32_t& slot = find(p);
    if (slot == 0) {
      list_.push_back(p);
      slot = static_cast<uint32_t>(list_.size());
    } else if (p.time < list_[slot - 1].time) {
      list_[slot - 1] = p;
    }
  }

 private:
  uint32_t& find(const Part& p) {
    const size_t mask = slots_.size() - 1;
    uint64_t h = static_cast<uint64_t>(p.before) * 0x9E3779B97F4A7C15u ^
                 static_cast<uint64_t>(p.peak) * 0xC2B2AE3D27D4EB4Fu;
    h ^= h >> 29;
    for (size_t i = h & mask;; i = (i + 1) & mask) {
      if (slots_[i] == 0) return slots_[i];
      const Part& q = list_[slots_[i] - 1];
      if (q.before == p.before && q.peak == p.peak) return slots_[i];
    }
  }
  void grow() {
    slots_.assign(slots_.size() * 4, 0);
    for (size_t n = 0; n < list_.size(); ++n) find(list_[n]) = static_cast<uint32_t>(n + 1);
  }
  std::vector<Part>& list_;
  std::vector<uint32_t> slots_;  // index + 1, 0: free
};

// The least value seen at a rank or below (a Fenwick tree).
class LeastBelow {
 public:
  explicit LeastBelow(size_t ranks) : least_(ranks + 1, {kNever, 0}) {}
  std::pair<int64_t, uint32_t> at(size_t rank) const {  // ranks from 1
    std::pair<int64_t, uint32_t> least{kNever, 0};
    for (size_t i = rank; i > 0; i &= i - 1) least = std::min(least, least_[i]);
    return least;
  }
  void put(size_t rank, int64_t value, uint32_t what) {
    for (size_t i = rank; i < least_.size(); i += i & (~i + 1)) {
      least_[i] = std::min(least_[i], std::pair{value, what});
    }
  }

 private:
  std::vector<std::pair<int64_t, uint32_t>> least_;
};

std::vector<int64_t> ranks_of(const std::vector<Part>& list, int64_t Part::* amount) {
  std::vector<int64_t> values;
  values.reserve(list.size());
  for (const Part& p : list) values.push_back(p.*amount);
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}
// How many of the sorted `values` are at most v.
size_t count_up_to(const std::vector<int64_t>& values, int64_t v) {
  return static_cast<size_t>(std::upper_bound(values.begin(), values.end(), v) - values.begin());
}

// Sorts by time and keeps what is smaller, in `before` or in `peak`, than all that is no slower.
void drop_dominated(std::vector<Part>& list) {
  std::sort(list.begin(), list.end(), [](const Part& a, const Part& b) {
    return a.time != b.time ? a.time < b.time : a.before != b.before ? a.before < b.before : a.peak < b.peak;
  });
  const auto values = ranks_of(list, &Part::before);
  LeastBelow peaks(values.size());
  size_t kept = 0;
  for (const Part& p : list) {
    const size_t rank = count_up_to(values, p.before);
    if (peaks.at(rank).first <= p.peak) continue;
    peaks.put(rank, p.peak, 0);
    list[kept++] = p;
  }
  list.resize(kept);
}

class Meeting {
 public:
  Meeting(const Series& series, const std::vector<PhasePrices>& views, int64_t most, size_t longest,
          Stopwatch& watch)
      : series_(series),
        views_(views),
        n_(series.segments().size()),
        most_(most),
        longest_(longest),
        watch_(watch) {}

  // `allowance`: what is looked for above the bound of views[0].
  SequenceFound run(double allowance) {
    SequenceFound found;
    lists_.resize(n_);
    for (size_t s = 0; s < n_; ++s) {
      if (!list_treatments(series_, series_.segments()[s], views_[0], allowance, kMostTreatments, watch_,
                           lists_[s]))
        return found;
    }
    look_ahead();
    std::vector<std::vector<Part>> first(1), last(1);
    first[0].push_back({0, 0, -kLargestSum, 0, 0});
    last[0].push_back({0, 0, -kLargestSum, 0, 0});
    size_t low = 0, high = n_;  // segments low to high - 1 are in neither
    while (low < high) {
      const bool forward = first.back().size() <= last.back().size();
      auto& grown = forward ? first : last;
      std::vector<Part> list;
      const bool whole =
          forward ? extend<true>(grown.back(), low, list) : extend<false>(grown.back(), high - 1, list);
      found.nodes = nodes_;
      if (!whole) return found;
      forward ? ++low : --high;
      if (list.empty()) {
        found.complete = true;
        return found;
      }
      grown.push_back(std::move(list));
    }
    found.complete = true;
    match(first, last, found);
    return found;
  }

 private:
  void look_ahead() {
    until_.resize(n_ + 1), from_.resize(n_ + 1);
    for (size_t s = 0; s < n_; ++s) until_[s + 1] = Extremes::join(until_[s], extremes_of(lists_[s]));
    for (size_t s = n_; s-- > 0;) from_[s] = Extremes::join(extremes_of(lists_[s]), from_[s + 1]);
    const size_t views = views_.size();
    ahead_.resize((n_ + 1) * views), behind_.resize((n_ + 1) * views);
    std::vector<double> least(n_);
    for (size_t v = 0; v < views; ++v) {
      const PhasePrices& p = views_[v];
      double all = -p.all() * static_cast<double>(series_.limit());
      for (size_t s = 0; s < n_; ++s) {
        const auto& segment = series_.segments()[s];
        const double after = p.before(segment.first), inside = p.of(segment.first, segment.end),
                     before = p.from(segment.end);
        least[s] = std::numeric_limits<double>::infinity();
        for (const Treatment& t : lists_[s]) {
          least[s] = std::min(least[s], static_cast<double>(t.time) + after * static_cast<double>(t.after) +
                                            inside * static_cast<double>(t.peak) +
                                            before * static_cast<double>(t.before));
        }
        all += least[s];
      }
      double rest = all;
      for (size_t s = 0; s <= n_; ++s) {
        const size_t at = s < n_ ? series_.segments()[s].first : series_.operators();
        const double past = p.before(at), to_come = p.from(at);
        ahead_[s * views + v] = {to_come, past, rest};
        behind_[s * views + v] = {past, to_come, all - rest - p.all() * static_cast<double>(series_.limit())};
        if (s < n_) rest -= least[s];
      }
    }
  }

  // Forward: parts over the segments before `s` and one treatment of it; else over those after it.
  template <bool Forward>
  bool extend(const std::vector<Part>& from, size_t s, std::vector<Part>& to) {
    const int64_t limit = series_.limit();
    const Extremes& other = Forward ? from_[s + 1] : until_[s];
    const int64_t least_whole = Forward ? other.least_after : other.least_before;
    const int64_t most_whole = Forward ? other.most_after : other.most_before;
    const int64_t peak_floor = limit - most_whole, before_floor = limit - other.most_peak;
    const size_t views = views_.size();
    const Outlook* outlook = Forward ? &ahead_[(s + 1) * views] : &behind_[s * views];
    const auto most = static_cast<double>(most_) + 4;
    Unique unique(to);
    size_t likely = 0;  // the view that dropped the last part
    for (size_t i = 0; i < from.size(); ++i) {
      const Part& x = from[i];
      for (size_t k = 0; k < lists_[s].size(); ++k) {
        const Treatment& t = lists_[s][k];
        Part y;
        y.time = x.time + t.time;
        if constexpr (Forward) {
          y.before = x.before + t.before;
          y.peak = std::max(x.peak + t.after, x.before + t.peak);
        } else {  // `before` is what the last part holds after its backward
          y.before = x.before + t.after;
          y.peak = std::max(t.peak + x.before, t.before + x.peak);
        }
        if (y.peak + least_whole > limit || y.before + other.least_peak > limit) continue;
        const auto time = static_cast<double>(y.time), before = static_cast<double>(y.before),
                   peak = static_cast<double>(y.peak);
        const auto beyond = [&](const Outlook& o) {
          const double low = time + o.by_peak * peak + o.by_before * before;
          return low + o.rest > most + 1e-12 * (low + std::abs(o.rest));
        };
        if (beyond(outlook[likely])) continue;
        size_t v = 0;
        while (v < views && !beyond(outlook[v])) ++v;
        if (v < views) {
          likely = v;
          continue;
        }
        if constexpr (Forward) {
          y.before = std::max(y.before, before_floor);
          y.peak = std::max(y.peak, peak_floor);
        }
        y.parent = static_cast<uint32_t>(i), y.item = static_cast<uint32_t>(k);
        unique.add(y);
      }
      nodes_ += static_cast<int64_t>(lists_[s].size());
      if (to.size() > 8 * longest_ || watch_.spent(static_cast<int64_t>(10 * lists_[s].size()))) return false;
    }
    drop_dominated(to);
    return to.size() <= longest_ && !watch_.spent(static_cast<int64_t>(200 * to.size()));
  }

  // The fastest pair that fits: first parts by rising peak, last parts by falling `after`.
  void match(const std::vector<std::vector<Part>>& first, const std::vector<std::vector<Part>>& last,
             SequenceFound& found) {
    const std::vector<Part>&x = first.back(), &y = last.back();
    const auto by = [](const std::vector<Part>& list, int64_t Part::* amount) {
      std::vector<uint32_t> order(list.size());
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(),
                [&](uint32_t a, uint32_t b) { return list[a].*amount < list[b].*amount; });
      return order;
    };
    // Last parts enter as the room that a first part leaves for `after` grows.
    const auto entering = by(y, &Part::before);
    auto asking = by(x, &Part::peak);
    std::reverse(asking.begin(), asking.end());
    const auto values = ranks_of(y, &Part::peak);
    LeastBelow fastest(values.size());
    int64_t best = most_ + 1;
    uint32_t best_first = 0, best_last = 0;
    size_t entered = 0;
    for (uint32_t i : asking) {
      for (; entered < entering.size() && y[entering[entered]].before + x[i].peak <= series_.limit();
           ++entered) {
        const Part& p = y[entering[entered]];
        fastest.put(count_up_to(values, p.peak), p.time, entering[entered]);
      }
      const auto [time, j] = fastest.at(count_up_to(values, series_.limit() - x[i].before));
      if (time != kNever && x[i].time + time < best) best = x[i].time + time, best_first = i, best_last = j;
    }
    if (best > most_) return;
    found.found = true;
    found.time_ps = best + series_.fixed_ps();
    std::vector<const Treatment*> chosen(n_);
    for (size_t s = first.size() - 1; s > 0; --s) {
      const Part& p = first[s][best_first];
      chosen[s - 1] = &lists_[s - 1][p.item];
      best_first = p.parent;
    }
    for (size_t s = last.size() - 1; s > 0; --s) {
      const Part& p = last[s][best_last];
      chosen[n_ - s] = &lists_[n_ - s][p.item];
      best_last = p.parent;
    }
    found.decision = series_.decide(chosen);
  }

  const Series& series_;
  const std::vector<PhasePrices>& views_;
  const size_t n_;
  const int64_t most_;  // without fixed_ps
  const size_t longest_;
  Stopwatch& watch_;
  int64_t nodes_ = 0;
  std::vector<std::vector<Treatment>> lists_;
  std::vector<Extremes> until_, from_;   // of the segments before s, of s and those behind it
  std::vector<Outlook> ahead_, behind_;  // [number of segments][view]
};

}  // namespace

Sequence::Sequence(Series series, const std::vector<double>& prices,
                   const std::vector<std::vector<double>>& others)
    : series_(std::move(series)) {
  views_.emplace_back(prices);
  for (const auto& v : others) views_.emplace_back(v);
  double sum = 0;
  for (const auto& segment : series_.segments()) sum += least_cost(series_, segment, views_[0]);
  const double memory = views_[0].all() * static_cast<double>(series_.limit());
  bound_ = sum - memory - 1 - 1e-12 * (sum + memory);
}

SequenceFound Sequence::look(int64_t most_ps, size_t longest, Stopwatch& watch) const {
  const int64_t most = most_ps - series_.fixed_ps();
  SequenceFound nothing;
  nothing.complete = true;
  if (series_.limit() < 0 || static_cast<double>(most) < bound_) return nothing;
  return Meeting(series_, views_, most, longest, watch).run(static_cast<double>(most) - bound_);
}

}  // namespace osdp::search
