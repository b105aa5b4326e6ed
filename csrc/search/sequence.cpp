// Note [Sequence]
// Plans are put together from both ends. Of the first segments a partial plan has time, `before` and `peak`,
// of the last ones time, `after` and `peak` (Note [Series]); two that meet are a plan if
//   first.peak + last.after <= limit  and  first.before + last.peak <= limit,
// so two amounts of memory are all that either end has, however many phases bind. Partial plans that another
// one is no worse than in time and both amounts are dropped; so are those whose bound, at any of some prices,
// is beyond what is looked for: the other end costs at least so much at these prices, and the phases of one
// end count together, with the sum of their prices. Of first parts, an amount that nothing behind them could
// make too large is raised to the most that is harmless, so that it tells no plans apart. (Not of both ends:
// what is harmless to plain ones may not be to raised ones.) The end that is less work grows next; where the
// two meet, one pass finds the best pair.
#include "search/sequence.hpp"

#include <algorithm>
#include <cmath>

#include "search/parts.hpp"
#include "search/stages.hpp"

namespace osdp::search {
namespace {

class Meeting {
 public:
  Meeting(const Series& series, const Stages& stages, size_t views, int64_t most, size_t longest,
          Stopwatch& watch)
      : series_(series), stages_(stages), views_(views), most_(most), longest_(longest), watch_(watch) {}

  SequenceFound run() {
    SequenceFound found;
    first_.assign(1, {{0, 0, -kLargestSum, 0, 0}});
    last_.assign(1, {{0, 0, -kLargestSum, 0, 0}});
    size_t low = 0, high = stages_.size();  // segments low to high - 1 are in neither
    while (low < high) {
      const bool forward = first_.back().size() * stages_.items(low).size() <=
                           last_.back().size() * stages_.items(high - 1).size();
      auto& grown = forward ? first_ : last_;
      std::vector<Part> list;
      const bool whole =
          forward ? extend<true>(grown.back(), low++, list) : extend<false>(grown.back(), --high, list);
      found.nodes = nodes_;
      if (!whole) return found;
      if (list.empty()) {
        found.complete = true;
        return found;
      }
      grown.push_back(std::move(list));
    }
    found.complete = true;
    const Pair best = fastest_pair(first_.back(), last_.back(), series_.limit());
    if (best.time > most_) return found;
    found.found = true;
    found.time_ps = best.time + series_.fixed_ps();
    found.decision = decide(best);
    return found;
  }

 private:
  // Forward: parts over the segments before `s` and one item of it; else over those behind it.
  template <bool Forward>
  bool extend(const std::vector<Part>& from, size_t s, std::vector<Part>& to) {
    const int64_t limit = series_.limit();
    const std::vector<Item>& items = stages_.items(s);
    const Extremes& other = Forward ? stages_.from(s + 1) : stages_.until(s);
    const int64_t other_least = Forward ? other.least_after : other.least_before;
    const int64_t peak_floor = limit - other.most_after, before_floor = limit - other.most_peak;
    const Outlook* outlook = Forward ? stages_.ahead(s + 1) : stages_.behind(s);
    const auto most = static_cast<double>(most_) + 4;
    UniqueParts unique(to);
    size_t likely = 0;  // the view that dropped the last part
    for (size_t i = 0; i < from.size(); ++i) {
      const Part& x = from[i];
      for (size_t k = 0; k < items.size(); ++k) {
        const Item& t = items[k];
        Part y;
        y.time = x.time + t.time;
        if constexpr (Forward) {
          y.before = x.before + t.before;
          y.peak = std::max(x.peak + t.after, x.before + t.peak);
        } else {
          y.before = x.before + t.after;
          y.peak = std::max(t.peak + x.before, t.before + x.peak);
        }
        if (y.peak + other_least > limit || y.before + other.least_peak > limit) continue;
        const auto time = static_cast<double>(y.time), before = static_cast<double>(y.before),
                   peak = static_cast<double>(y.peak);
        const auto beyond = [&](const Outlook& o) {
          const double low = time + o.by_peak * peak + o.by_before * before;
          return low + o.rest > most + 1e-12 * (low + std::abs(o.rest));
        };
        if (beyond(outlook[likely])) continue;
        size_t v = 0;
        while (v < views_ && !beyond(outlook[v])) ++v;
        if (v < views_) {
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
      nodes_ += static_cast<int64_t>(items.size());
      if (to.size() > 8 * longest_ || watch_.spent(static_cast<int64_t>(10 * items.size()))) return false;
    }
    drop_dominated(to);
    return to.size() <= longest_ && !watch_.spent(static_cast<int64_t>(200 * to.size()));
  }

  Decision decide(const Pair& best) const {
    const size_t n = stages_.size();
    std::vector<const Treatment*> chosen(n);
    size_t at = best.first;
    for (size_t s = first_.size() - 1; s > 0; --s) {
      const Part& p = first_[s][at];
      chosen[s - 1] = &stages_.treatment(s - 1, stages_.items(s - 1)[p.item]);
      at = p.parent;
    }
    at = best.last;
    for (size_t s = last_.size() - 1; s > 0; --s) {
      const Part& p = last_[s][at];
      chosen[n - s] = &stages_.treatment(n - s, stages_.items(n - s)[p.item]);
      at = p.parent;
    }
    return series_.decide(chosen);
  }

  const Series& series_;
  const Stages& stages_;
  const size_t views_;
  const int64_t most_;  // without fixed_ps
  const size_t longest_;
  Stopwatch& watch_;
  int64_t nodes_ = 0;
  std::vector<std::vector<Part>> first_, last_;  // [segments]
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
  bound_ = sum - memory - 1 - 1e-12 * (sum + std::abs(memory));
}

SequenceFound Sequence::look(int64_t most_ps, size_t longest, Stopwatch& watch) const {
  const int64_t most = most_ps - series_.fixed_ps();
  SequenceFound nothing;
  Stages stages(series_, views_, bound_, most);
  if (series_.limit() < 0 || static_cast<double>(most) < bound_) {
    nothing.complete = true;
  } else if (stages.make(watch)) {
    if (!stages.hopeless()) return Meeting(series_, stages, views_.size(), most, longest, watch).run();
    nothing.complete = true;
  }
  return nothing;
}

}  // namespace osdp::search
