// Note [Price of the peak]
// Prices of single phases leave a gap where in many segments alike (wide blocks, say) the own phase binds: at
// these prices such a segment is as well off with much memory as with little, so that the bound mixes the
// two, in each of them; but a plan must choose. One price for the largest phase of the plan, as it is, mixes
// whole plans only:
//   time >= min over plans of (time + price * (peak - limit)),
// and with the sum of the phases' prices for price this is never the lower bound, since no phase exceeds the
// peak. Its minimum is found from the back. Relative to what is held at the end, `net` = peak - after, a
// segment t before a last part y gives
//   net = max(t.peak - t.after, t.before - t.after + y.net),  cost = t.time + price * t.after + y.cost,
// two numbers, so that the lists of those that are not dominated are short; and those that the phases' prices
// show to lead to nothing are dropped.
//
// A first part x then needs of the rest y that x.peak + y.after <= limit and x.before + y.after + y.net <=
// limit, so y.after is at most limit - x.peak - max(0, y.net - (x.peak - x.before)), and
//   y.time = y.cost - price * y.after
// is bounded for each y of the list: PeakBound::after().
#include "search/peak_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace osdp::search {
namespace {

struct Choice {
  double cost, net, grows, after;  // grows: before - after
};
struct Last {
  double cost, net, after;
};

// A list that is filled from the front, again and again.
struct Lasts {
  std::vector<Last> parts;
  size_t count = 0;
  Last* room(size_t most) {
    if (parts.size() < most) parts.resize(2 * most);
    return parts.data();
  }
  const Last* begin() const { return parts.data(); }
  const Last* end() const { return parts.data() + count; }
};

// Both sorted by cost, with falling net; so is the outcome.
void merge(const Lasts& a, const Lasts& b, Lasts& to) {
  Last* const first = to.room(a.count + b.count);
  Last* next = first;
  double least = std::numeric_limits<double>::infinity();
  const Last *i = a.begin(), *j = b.begin();
  const auto add = [&](const Last& x) {
    *next = x;
    next += x.net < least;
    least = std::min(least, x.net);
  };
  while (i < a.end() && j < b.end()) {
    const bool left = i->cost != j->cost ? i->cost < j->cost : i->net <= j->net;
    add(left ? *i++ : *j++);
  }
  while (i < a.end()) add(*i++);
  while (j < b.end()) add(*j++);
  to.count = static_cast<size_t>(next - first);
}

}  // namespace

bool PeakBound::make(const Series& series, const Stages& stages, const PhasePrices& prices, int64_t most,
                     size_t longest, Stopwatch& watch) {
  price_ = prices.all();
  limit_ = static_cast<double>(series.limit());
  const size_t n = stages.size();
  fronts_.assign(n + 1, {});
  Lasts list{{{0, -static_cast<double>(kLargestSum), 0}}, 1}, next, sum, merged;
  std::vector<Choice> all, choices;
  std::vector<double> costs(n + 1, 0);  // at the phases' prices, of the segments before
  for (size_t s = 0; s < n; ++s) {
    double own = kNothing;
    const StretchPrices here(prices, series.segments()[s]);
    for (const Item& t : stages.items(s)) own = std::min(own, here.cost(t));
    costs[s + 1] = costs[s] + own;
  }
  for (size_t s = n;; --s) {
    Front& f = fronts_[s];
    double least = kNothing;
    f.cost.reserve(list.count), f.net.reserve(list.count), f.least.reserve(list.count);
    for (const Last& y : list) {
      f.cost.push_back(y.cost), f.net.push_back(y.net);
      f.least.push_back(least = std::min(least, y.cost + price_ * y.net));
    }
    if (list.count == 0) return true;
    if (s == 0) {
      const auto best = std::min_element(list.begin(), list.end(), [&](const Last& a, const Last& b) {
        return a.cost + price_ * a.net < b.cost + price_ * b.net;
      });
      time_ = best->cost - price_ * best->after, peak_ = best->net + best->after;
      return true;
    }
    all.clear(), choices.clear();
    for (const Item& t : stages.items(s - 1)) {
      all.push_back({static_cast<double>(t.time) + price_ * static_cast<double>(t.after),
                     static_cast<double>(t.peak - t.after), static_cast<double>(t.before - t.after),
                     static_cast<double>(t.after)});
    }
    std::sort(all.begin(), all.end(), [](const Choice& a, const Choice& b) { return a.cost < b.cost; });
    for (const Choice& c : all) {
      if (std::none_of(choices.begin(), choices.end(),
                       [&](const Choice& x) { return x.net <= c.net && x.grows <= c.grows; }))
        choices.push_back(c);
    }
    // What the segments before cost at least at the phases' prices.
    const double by_net = prices.from(series.segments()[s - 1].first), rest = costs[s - 1] - price_ * limit_;
    const double enough =
        static_cast<double>(most) + 4 - rest + 1e-12 * (static_cast<double>(most) + std::abs(rest));
    size_t work = 0;
    sum.count = 0;
    for (const Choice& t : choices) {
      Last* to = next.room(list.count + 1);
      next.count = 0;
      for (const Last& y : list) {
        const double cost = t.cost + y.cost;
        if (cost + by_net * t.net > enough) break;  // and all that follow
        const double net = std::max(t.net, t.grows + y.net);
        to[next.count] = {cost, net, y.after + t.after};
        next.count += cost + by_net * net <= enough;
        if (net <= t.net) break;  // no less after this one
      }
      work += next.count + sum.count;
      merge(sum, next, merged);
      std::swap(sum, merged);
      if (watch.spent(static_cast<int64_t>(2 * (list.count + sum.count)))) return false;
    }
    std::swap(list, sum);
    if (list.count > longest || watch.spent(static_cast<int64_t>(work))) return false;
  }
}

}  // namespace osdp::search
