// Note [Label setting]
// Labels are extended from the front of the chain. A label, a partial plan of the first segments, has a time,
// `before` and `peak`; later segments add their `peak` and their `after` to these (Note [Chain resources]),
// so two amounts of memory suffice however many phases bind. Labels dominated in time and both amounts are
// dropped, and so are those whose lower bound exceeds the target (labels/peak_bound.hpp). An amount that no
// completion can make exceed the limit is raised to the largest harmless value, so that it does not prevent
// dominance.
//
// Work grows steeply with the distance between target and bound, so the bound is improved first: the phases'
// prices alone leave a large gap. Peak bounds are computed for plans up to some time, which is raised if
// there are no such plans and lowered if lists grow long. Then the target starts slightly above the best
// bound and is raised until a plan is found, which is optimal. What one search has proven is kept for the
// next.
#include "search/labels/label_setting.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "search/labels/column_reduction.hpp"
#include "search/labels/peak_bound.hpp"

namespace osdp::search {
namespace {

class Growth {
 public:
  Growth(const ChainResources& chain, const ColumnReduction& reduction, const std::vector<PeakBound>& rests,
         int64_t most, Stopwatch& watch)
      : chain_(chain), reduction_(reduction), rests_(rests), most_(most), watch_(watch) {}

  LabelSettingResult run(size_t longest) {
    LabelSettingResult found;
    lists_.assign(1, {{0, 0, -kLargestSum, 0, 0}});
    for (size_t s = 0; s < reduction_.size(); ++s) {
      std::vector<Label> list;
      const bool whole = extend(lists_.back(), s, longest, list);
      found.nodes += static_cast<int64_t>(lists_.back().size() * reduction_.items(s).size());
      if (!whole) return found;
      found.complete = list.empty();
      if (list.empty()) return found;
      lists_.push_back(std::move(list));
    }
    found.complete = true;
    if (lists_.back()[0].time > most_) return found;  // exceeds the target by the margin for rounding
    found.found = true;
    found.time_ps = lists_.back()[0].time + chain_.fixed_ps();  // sorted by time
    found.decision = decide(0);
    return found;
  }

 private:
  bool extend(const std::vector<Label>& from, size_t s, size_t longest, std::vector<Label>& to) {
    const int64_t limit = chain_.limit();
    const std::vector<BlockColumn>& items = reduction_.items(s);
    const Extremes& other = reduction_.from(s + 1);
    const int64_t peak_floor = limit - other.most.after, before_floor = limit - other.most.peak;
    const auto most = static_cast<double>(most_) + 4;
    UniqueLabels unique(to);
    const std::vector<Ordered> order = by_cost(from, s);
    const double price = rests_[0].price();
    for (size_t i = 0; i < from.size(); ++i) {
      const Label& x = from[i];
      const double paid = static_cast<double>(x.time) + price * static_cast<double>(x.peak);
      for (const Ordered& o : order) {
        if (paid + o.least > most + 1e-12 * (most + std::abs(paid))) break;
        const size_t k = o.item;
        const BlockColumn& t = items[k];
        Label y;
        y.time = x.time + t.time;
        y.before = x.before + t.before;
        y.peak = std::max(x.peak + t.after, x.before + t.peak);
        if (y.peak + other.least.after > limit || y.before + other.least.peak > limit) continue;
        y.before = std::max(y.before, before_floor);
        y.peak = std::max(y.peak, peak_floor);
        const auto too_slow = [&](const PeakBound& rest) {
          return rest.after(s + 1, y) > most + 1e-12 * std::abs(most);
        };
        if (std::any_of(rests_.begin(), rests_.end(), too_slow)) continue;
        y.parent = static_cast<uint32_t>(i), y.item = static_cast<uint32_t>(k);
        unique.add(y);
      }
      if (to.size() > 8 * longest || watch_.spent(static_cast<int64_t>(10 * items.size()))) return false;
    }
    drop_dominated(to);
    return to.size() <= longest && !watch_.spent(static_cast<int64_t>(200 * to.size()));
  }

  struct Ordered {
    double least;
    uint32_t item;
  };
  // All items, sorted by a lower bound on completions of any label of `from` with this item, without the
  // label's own time and price * peak. The extended label's peak is at least x.peak + t.after, and peak -
  // before is at most its maximum over `from`.
  std::vector<Ordered> by_cost(const std::vector<Label>& from, size_t s) const {
    int64_t room = -kLargestSum;
    for (const Label& x : from) room = std::max(room, x.peak - x.before);
    std::vector<Ordered> order;
    for (const BlockColumn& t : reduction_.items(s)) {
      const double least = rests_[0].after(s + 1, {t.time, t.before - room, t.after});
      order.push_back({least, static_cast<uint32_t>(order.size())});
    }
    std::sort(order.begin(), order.end(),
              [](const Ordered& a, const Ordered& b) { return a.least < b.least; });
    return order;
  }

  Decision decide(size_t at) const {
    std::vector<Chosen> chosen(reduction_.size());
    for (size_t s = reduction_.size(); s > 0; --s) {
      const Label& p = lists_[s][at];
      chosen[s - 1] = reduction_.chosen(s - 1, reduction_.items(s - 1)[p.item]);
      at = p.parent;
    }
    return chain_.decide(chosen);
  }

  const ChainResources& chain_;
  const ColumnReduction& reduction_;
  const std::vector<PeakBound>& rests_;
  const int64_t most_;  // without fixed_ps
  Stopwatch& watch_;
  std::vector<std::vector<Label>> lists_;  // [segments]
};

}  // namespace

LabelSetting::LabelSetting(ChainResources chain, const std::vector<double>& prices)
    : chain_(std::move(chain)), prices_(prices) {
  double sum = 0;
  for (const auto& segment : chain_.segments()) sum += least_cost(chain_, segment, prices_);
  const double memory = prices_.all() * static_cast<double>(chain_.limit());
  bound_ = priced_bound_ = sum - memory - 1 - 1e-12 * (sum + std::abs(memory));
}

// Computes the columns of each segment for plans up to `time`. The lists are made for a somewhat larger time,
// since the next target is a little larger. False if there are too many, or if the budget is spent.
bool LabelSetting::narrow(Near& near, int64_t time, Stopwatch& watch) {
  constexpr double kMore = 1.25;
  if (time > listed_) {
    const double more = priced_bound_ + kMore * (static_cast<double>(time) - priced_bound_);
    listed_ = std::max(time, static_cast<int64_t>(std::min(more, static_cast<double>(near.most))));
    reduction_ = ColumnReduction(chain_, prices_, priced_bound_, listed_);
    if (!reduction_.make(watch)) {
      listed_ = -1;
      return false;
    }
  }
  near.time = time;
  return true;
}

// Computes bounds at several prices of the peak around the best one, sorted by descending bound: if the
// bound's plan exceeds the limit the price is raised, otherwise lowered. `most` is lowered to the time of a
// plan within the limit. False if lists exceed `longest`.
bool LabelSetting::bound_peak(Near& near, size_t longest, size_t many, int64_t& most, Stopwatch& watch) {
  constexpr double kLittle = 0.6;  // of a step: below this gain no better price is sought
  const auto limit = static_cast<double>(chain_.limit());
  const PeakBound *over = nullptr, *within = nullptr;
  auto& bounds = near.bounds;
  bounds.clear();
  bounds.reserve(many);
  double scale = scale_, factor = 1.25;
  while (bounds.size() < many) {
    PeakBound& b = bounds.emplace_back();
    if (!b.make(chain_, reduction_, prices_.times(scale), most, longest, watch)) {
      bounds.pop_back();
      break;
    }
    if (b.bound() > static_cast<double>(most)) {
      scale_ = scale;
      return true;
    }
    if (prices_.all() <= 0) break;
    if (b.peak() <= limit) {
      within = &b;
      see(b);
      most = std::min(most, static_cast<int64_t>(std::ceil(b.time() * (1 + 1e-11))) + 4);
    } else {
      over = &b;
    }
    if (over != nullptr && within != nullptr) {  // the price at which the two plans have equal value
      const double price = (within->time() - over->time()) / (over->peak() - within->peak());
      const double highest = over->time() + price * (over->peak() - limit);  // no bound is higher
      if (highest - std::max(over->bound(), within->bound()) < kLittle * step()) break;
      scale = price / prices_.all();
    } else {
      scale *= within == nullptr ? factor : 1 / factor;
      factor *= factor;
    }
  }
  if (bounds.empty()) return false;
  std::stable_sort(bounds.begin(), bounds.end(),
                   [](const PeakBound& a, const PeakBound& b) { return a.bound() > b.bound(); });
  if (bounds[0].bound() > bound_ && prices_.all() > 0) scale_ = bounds[0].price() / prices_.all();
  return true;
}

// Finds bounds near the best price of the peak for plans up to some time, by bisection over that time: if it
// is too small there are no plans to bound, if too large the lists exceed `kShort`.
LabelSetting::Progress LabelSetting::price_peak(Near& near, size_t longest, Stopwatch& watch) {
  constexpr size_t kShort = 600;  // entries in a list
  double lowest = std::max(bound_, static_cast<double>(proven_)), highest = static_cast<double>(near.most);
  size_t allowed = std::min(kShort, longest);
  int64_t time = near.most;
  for (;;) {
    if (watch.spent() || !narrow(near, time, watch)) return Progress::Stopped;
    int64_t enough = near.time;
    const bool listed = bound_peak(near, allowed, 4, enough, watch);
    if (watch.stopped()) return Progress::Stopped;
    if (!listed) {
      if (near.time == static_cast<int64_t>(highest) && allowed >= longest) return Progress::Stopped;
      highest = static_cast<double>(near.time);
    } else {
      double bound = lowest;
      for (const PeakBound& b : near.bounds) bound = std::max(bound, b.bound());
      const bool some = bound <= static_cast<double>(enough) * (1 + 1e-12) + 4;
      if (enough < near.time) near.most = enough;  // a plan of this time is known
      if (some) {
        near.time = enough;
        bound_ = std::max(bound_, bound);
        priced_ = true;
        return Progress::Done;
      }
      proven_ = std::max(proven_, near.time);
      if (near.time >= near.most) return Progress::Nothing;
      lowest = static_cast<double>(near.time);
      if (lowest >= highest) highest = static_cast<double>(near.most);  // continue with longer lists
    }
    time = static_cast<int64_t>((lowest + highest) / 2);
    if (highest - lowest < step()) {
      time = std::min(near.most, static_cast<int64_t>(highest));
      allowed = std::min(longest, 4 * allowed);
    }
  }
}

// Keeps the plan of a bound if it fits.
void LabelSetting::see(const PeakBound& bound) {
  if (bound.time() + static_cast<double>(chain_.fixed_ps()) >= static_cast<double>(seen_ps_)) return;
  std::vector<BlockColumn> items;
  if (!bound.plan(reduction_, items)) return;
  Stretch whole = kNoStretch;
  whole.time = chain_.fixed_ps();
  std::vector<Chosen> chosen;
  for (size_t s = 0; s < items.size(); ++s) {
    whole = join(whole, items[s]);
    chosen.push_back(reduction_.chosen(s, items[s]));
  }
  if (whole.time >= seen_ps_ || whole.peak > chain_.limit()) return;
  seen_ps_ = whole.time;
  seen_ = chain_.decide(chosen);
}

LabelSettingResult LabelSetting::look(int64_t most_ps, int64_t known_ps, size_t longest, Stopwatch& watch) {
  seen_ps_ = known_ps;
  seen_ = {};
  LabelSettingResult found = search(most_ps, longest, watch);
  found.seen_ps = seen_ps_;
  found.seen = std::move(seen_);
  return found;
}

LabelSettingResult LabelSetting::search(int64_t most_ps, size_t longest, Stopwatch& watch) {
  constexpr double kWider = 1.5;
  constexpr int64_t kFew = 10000;  // labels that are cheap to search
  LabelSettingResult found;
  Near near;
  near.most = most_ps - chain_.fixed_ps();
  const auto nothing = [&] {
    proven_ = std::max(proven_, near.most);
    found.complete = true;
    return found;
  };
  if (chain_.limit() < 0 || static_cast<double>(near.most) < bound_ || near.most <= proven_) return nothing();
  if (!priced_) {
    const Progress progress = price_peak(near, longest, watch);
    if (progress == Progress::Stopped) return found;
    if (progress == Progress::Nothing) return nothing();
  }
  int64_t most_nodes = 0;  // largest number of labels for any target
  for (double apart = step();; apart *= most_nodes < kFew ? 2 * kWider : kWider) {
    const double lowest = std::max(bound_, static_cast<double>(proven_));
    const int64_t target = std::min(near.most, static_cast<int64_t>(lowest + apart));
    int64_t enough = target;
    found.complete = false;  // up to this target
    if (target > near.time) {
      if (!narrow(near, target, watch)) return found;
      if (!bound_peak(near, longest, 1, enough, watch)) return found;
    }
    const int64_t nodes = found.nodes;
    found = Growth(chain_, reduction_, near.bounds, enough, watch).run(longest);
    most_nodes = std::max(most_nodes, found.nodes);
    found.nodes += nodes;
    if (!found.complete || found.found) return found;
    proven_ = target;
    if (target >= near.most) return nothing();
  }
}

}  // namespace osdp::search
