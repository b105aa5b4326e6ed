// Note [Price of the peak]
// Prices of single phases leave a gap if in many equal segments (wide blocks, for example) the segment's own
// phase binds: at these prices an option of much memory and one of little cost the same, so the bound mixes
// the two in every segment, while a plan must choose one. A single price for the plan's largest phase mixes
// whole plans only:
//   time >= min over plans of (time + price * (peak - limit)),
// and with the sum of the phases' prices as the price this bound is never below theirs, since no phase
// exceeds the peak. Its minimum is found from the back of the chain. With the peak relative to the memory
// after backward, `net` = peak - after, a segment t followed by a suffix y gives
//   net = max(t.peak - t.after, t.before - t.after + y.net),  cost = t.time + price * t.after + y.cost,
// only two numbers, so the undominated lists are short; suffixes that exceed the target at the phases' prices
// are dropped too.
//
// A label x of the first segments can be extended by a suffix y only if x.peak + y.after <= limit and
// x.before + y.after + y.net <= limit, so y.after is at most limit - x.peak - max(0, y.net - (x.peak -
// x.before)), and
//   y.time = y.cost - price * y.after
// is bounded from below for each y of the list: PeakBound::after().
#include "search/labels/peak_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "search/problem/dominance.hpp"

namespace osdp::search {
namespace {

struct Choice {
  double cost, net, grows, after;  // grows: before - after
};
struct Last {
  double cost, net, after;
};

// A list that is refilled many times without reallocation.
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

// Merges two lists sorted by cost with decreasing net, dropping dominated entries; the result is sorted in
// the same way.
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

// The undominated choices of a segment, cheapest first.
std::vector<Choice> choices_of(const std::vector<BlockColumn>& items, double price) {
  std::vector<Choice> all;
  for (const BlockColumn& t : items) {
    all.push_back({static_cast<double>(t.time) + price * static_cast<double>(t.after),
                   static_cast<double>(t.peak - t.after), static_cast<double>(t.before - t.after),
                   static_cast<double>(t.after)});
  }
  std::sort(all.begin(), all.end(), [](const Choice& a, const Choice& b) { return a.cost < b.cost; });
  drop_dominated(
      all, [](const Choice& a, const Choice& b) { return a.net <= b.net && a.grows <= b.grows; }, all.size());
  return all;
}

// Builds the lists of suffixes from the back of the chain.
class Growing {
 public:
  const Lasts& list() const { return list_; }

  // Prepends a segment, dropping suffixes with cost + by_net * net above `enough`. Returns the work.
  size_t add(const std::vector<Choice>& choices, double by_net, double enough, Stopwatch& watch) {
    size_t work = 0;
    sum_.count = 0;
    find_least(by_net);
    for (const Choice& t : choices) {
      extend(t, by_net, enough);
      if (next_.count == 0) continue;
      work += next_.count + sum_.count;
      merge(sum_, next_, merged_);
      std::swap(sum_, merged_);
      if (watch.spent(static_cast<int64_t>(2 * (list_.count + sum_.count)))) break;
    }
    std::swap(list_, sum_);
    return work;
  }

 private:
  static constexpr size_t kBlock = 16;

  // The minimum of cost + by_net * net in each block of the list.
  void find_least(double by_net) {
    least_.clear();
    for (size_t i = 0; i < list_.count; ++i) {
      const double whole = list_.parts[i].cost + by_net * list_.parts[i].net;
      if (i % kBlock == 0) least_.push_back(whole);
      least_.back() = std::min(least_.back(), whole);
    }
  }

  // Prepends t to every suffix. Most then exceed `enough`, so whole blocks are skipped.
  void extend(const Choice& t, double by_net, double enough) {
    Last* to = next_.room(list_.count + 1);
    size_t count = 0;
    const double own = t.cost + by_net * t.grows;
    bool lower = true;  // the next suffix may still have a lower net
    for (size_t b = 0; b < least_.size() && lower; ++b) {
      if (own + least_[b] > enough) continue;
      const Last *y = list_.begin() + b * kBlock, *end = std::min(y + kBlock, list_.end());
      for (; y < end && lower; ++y) {
        const double cost = t.cost + y->cost;
        const double net = std::max(t.net, t.grows + y->net);
        to[count] = {cost, net, y->after + t.after};
        count += cost + by_net * net <= enough;
        lower = net > t.net;
      }
    }
    next_.count = count;
  }

  Lasts list_{{{0, -static_cast<double>(kLargestSum), 0}}, 1}, next_, sum_, merged_;
  std::vector<double> least_;
};

}  // namespace

bool PeakBound::make(const ChainResources& chain, const ColumnReduction& reduction, const PhasePrices& prices,
                     int64_t most, size_t longest, Stopwatch& watch) {
  price_ = prices.all();
  limit_ = static_cast<double>(chain.limit());
  const size_t n = reduction.size();
  fronts_.assign(n + 1, {});
  const auto keep = [&](const Lasts& list, size_t s) {
    Front& f = fronts_[s];
    f.cost.reserve(list.count), f.net.reserve(list.count), f.least.reserve(list.count);
    double least = kNothing;
    for (const Last& y : list) {
      f.cost.push_back(y.cost), f.net.push_back(y.net);
      f.least.push_back(least = std::min(least, y.cost + price_ * y.net));
    }
  };
  // By list of the reduction: the segments' choices, and their least cost at the phases' prices.
  std::vector<std::vector<Choice>> choices;
  std::vector<double> least;
  for (size_t l = 0; l < reduction.lists(); ++l) {
    const StretchPrices here(prices, reduction.segment_of(l));
    double own = kNothing;
    for (const BlockColumn& t : reduction.items_of(l)) own = std::min(own, here.cost(t));
    least.push_back(own);
    choices.push_back(choices_of(reduction.items_of(l), price_));
  }
  std::vector<double> costs(n + 1, 0);  // least cost of the segments before s
  for (size_t s = 0; s < n; ++s) costs[s + 1] = costs[s] + least[reduction.list(s)];
  Growing growing;
  keep(growing.list(), n);
  for (size_t s = n; s-- > 0;) {
    // Least cost of the segments before s at the phases' prices, minus the price of the limit.
    const double rest = costs[s] - price_ * limit_;
    const double enough = static_cast<double>(most) + 4 + static_cast<double>(n) - rest +
                          1e-12 * (static_cast<double>(most) + std::abs(rest));
    const size_t work =
        growing.add(choices[reduction.list(s)], prices.from(chain.segments()[s].first), enough, watch);
    const size_t count = growing.list().count;
    if (count > longest || watch.spent(static_cast<int64_t>(work))) return false;
    if (count == 0) return true;
    keep(growing.list(), s);
  }
  const auto whole = [&](const Last& x) { return x.cost + price_ * x.net; };
  const Lasts& list = growing.list();
  const Last& best = *std::min_element(list.begin(), list.end(),
                                       [&](const Last& a, const Last& b) { return whole(a) < whole(b); });
  bound_ = whole(best) - price_ * limit_;
  time_ = best.cost - price_ * best.after, peak_ = best.net + best.after;
  cost_ = best.cost, net_ = best.net;
  return true;
}

// Reconstructs the plan from the front: for each segment, an item and a suffix of later segments that
// together attain the remaining cost and net.
bool PeakBound::plan(const ColumnReduction& reduction, std::vector<BlockColumn>& items) const {
  double cost = cost_, net = net_;
  items.clear();
  for (size_t s = 0; s < reduction.size(); ++s) {
    const Front& f = fronts_[s + 1];
    const double rounded = 1e-13 * std::abs(cost) + 0.5;
    const auto fits = [&](const BlockColumn& t) {
      const double own = static_cast<double>(t.time) + price_ * static_cast<double>(t.after);
      const auto end = std::upper_bound(f.cost.begin(), f.cost.end(), cost - own + rounded);
      if (end == f.cost.begin()) return false;
      const auto y = static_cast<size_t>(end - f.cost.begin()) - 1;  // of least net within the cost
      const double behind = f.net[y];
      if (static_cast<double>(t.peak - t.after) > net ||
          static_cast<double>(t.before - t.after) + behind > net)
        return false;
      cost = f.cost[y], net = behind;
      return true;
    };
    const auto& all = reduction.items(s);
    const auto at = std::find_if(all.begin(), all.end(), fits);
    if (at == all.end()) return false;
    items.push_back(*at);
  }
  return true;
}

}  // namespace osdp::search
