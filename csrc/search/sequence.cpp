// Note [Sequence]
// Plans grow from the front. Of the first segments a partial plan has time, `before` and `peak`, to which
// what follows adds its `peak` and its `after` (Note [Series]): two amounts of memory are all that it has,
// however many phases bind. Partial plans that another one is no worse than in time and both amounts are
// dropped; so are those whose bound is beyond what is looked for, at the prices of phases (the phases of the
// first part count together, with the sum of their prices) or at a price of the peak (peak_bound.hpp). An
// amount that nothing behind a partial plan could make too large is raised to the most that is harmless, so
// that it tells no plans apart.
//
// Work grows steeply with the distance above the bound up to which plans are looked for. So the bound comes
// first: with the phases' prices alone much lies below it. Peak bounds are made of the plans up to some time;
// where there are none the time rises, where lists grow long it falls. Then plans are looked for a little
// above the best bound, and further, until one is found: the best. What a look has proven the next one knows.
#include "search/sequence.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "search/peak_bound.hpp"
#include "search/stages.hpp"

namespace osdp::search {
namespace {

class Growth {
 public:
  Growth(const Series& series, const Stages& stages, const std::vector<PeakBound>& rests, size_t views,
         int64_t most, Stopwatch& watch)
      : series_(series), stages_(stages), rests_(rests), views_(views), most_(most), watch_(watch) {}

  SequenceFound run(size_t longest) {
    SequenceFound found;
    lists_.assign(1, {{0, 0, -kLargestSum, 0, 0}});
    for (size_t s = 0; s < stages_.size(); ++s) {
      std::vector<Part> list;
      const bool whole = extend(lists_.back(), s, longest, list);
      found.nodes += static_cast<int64_t>(lists_.back().size() * stages_.items(s).size());
      if (!whole) return found;
      found.complete = list.empty();
      if (list.empty()) return found;
      lists_.push_back(std::move(list));
    }
    found.complete = true;
    if (lists_.back()[0].time > most_) return found;  // by what was left for rounding
    found.found = true;
    found.time_ps = lists_.back()[0].time + series_.fixed_ps();  // sorted by time
    found.decision = decide(0);
    return found;
  }

 private:
  bool extend(const std::vector<Part>& from, size_t s, size_t longest, std::vector<Part>& to) {
    const int64_t limit = series_.limit();
    const std::vector<Item>& items = stages_.items(s);
    const Extremes& other = stages_.from(s + 1);
    const int64_t peak_floor = limit - other.most_after, before_floor = limit - other.most_peak;
    const Outlook* outlook = stages_.ahead(s + 1);
    const auto most = static_cast<double>(most_) + 4;
    UniqueParts unique(to);
    size_t likely = 0;  // the view that dropped the last part
    for (size_t i = 0; i < from.size(); ++i) {
      const Part& x = from[i];
      for (size_t k = 0; k < items.size(); ++k) {
        const Item& t = items[k];
        Part y;
        y.time = x.time + t.time;
        y.before = x.before + t.before;
        y.peak = std::max(x.peak + t.after, x.before + t.peak);
        if (y.peak + other.least_after > limit || y.before + other.least_peak > limit) continue;
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

  Decision decide(size_t at) const {
    std::vector<const Treatment*> chosen(stages_.size());
    for (size_t s = stages_.size(); s > 0; --s) {
      const Part& p = lists_[s][at];
      chosen[s - 1] = &stages_.treatment(s - 1, stages_.items(s - 1)[p.item]);
      at = p.parent;
    }
    return series_.decide(chosen);
  }

  const Series& series_;
  const Stages& stages_;
  const std::vector<PeakBound>& rests_;
  const size_t views_;
  const int64_t most_;  // without fixed_ps
  Stopwatch& watch_;
  std::vector<std::vector<Part>> lists_;  // [segments]
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
  bound_ = view_bound_ = sum - memory - 1 - 1e-12 * (sum + std::abs(memory));
}

// Bounds at several prices of the peak, about the best one: a plan over the limit asks for more, one within
// it for less. Such a plan's time is enough for `most`. False where a list grows longer than `longest`.
bool Sequence::bound_peak(Near& near, size_t longest, size_t many, int64_t& most, Stopwatch& watch) {
  const auto limit = static_cast<double>(series_.limit());
  const PeakBound *over = nullptr, *within = nullptr;
  auto& bounds = near.bounds;
  bounds.clear();
  bounds.reserve(many);
  double scale = scale_;
  while (bounds.size() < many) {
    PeakBound& b = bounds.emplace_back();
    if (!b.make(series_, near.stages, views_[0].times(scale), most, longest, watch)) {
      bounds.pop_back();
      return !bounds.empty();
    }
    if (b.bound() > static_cast<double>(most) || views_[0].all() <= 0) return true;
    if (b.peak() <= limit) {
      within = &b;
      most = std::min(most, static_cast<int64_t>(std::ceil(b.time())) + 4);
    } else {
      over = &b;
    }
    if (over != nullptr && within != nullptr) {  // where the two plans are as good as each other
      const double price = (within->time() - over->time()) / (over->peak() - within->peak());
      const auto same = [&](const PeakBound& x) { return std::abs(price - x.price()) < 1e-3 * x.price(); };
      if (std::any_of(bounds.begin(), bounds.end(), same)) break;
      scale = price / views_[0].all();
    } else {
      scale *= within == nullptr ? 1.25 : 0.8;
    }
  }
  double best = bound_;
  for (const PeakBound& b : bounds) {
    if (b.bound() > best) best = b.bound(), scale_ = b.price() / views_[0].all();
  }
  return true;
}

// Bounds of the plans up to some time, about the best price of the peak: as many as lists of `kShort` parts
// allow. With too few plans there is no bound, with too many lists grow long.
Sequence::Progress Sequence::price_peak(const Stages& stages, Near& near, size_t longest, Stopwatch& watch) {
  constexpr size_t kShort = 600;  // last parts in a list
  double lowest = std::max(bound_, static_cast<double>(proven_)), highest = static_cast<double>(near.most);
  size_t allowed = kShort;
  near.time = near.most;
  for (;;) {
    if (watch.spent()) return Progress::Stopped;
    near.stages = stages;
    if (near.time < near.most) near.stages.lower(near.time);
    int64_t enough = near.time;
    const bool listed = near.stages.hopeless() || bound_peak(near, allowed, 4, enough, watch);
    if (watch.stopped()) return Progress::Stopped;
    if (!listed) {
      if (near.time == static_cast<int64_t>(highest) && allowed >= longest) return Progress::Stopped;
      highest = static_cast<double>(near.time);
    } else {
      double bound = near.stages.hopeless() ? PeakBound::kNothing : lowest;
      for (const PeakBound& b : near.bounds) bound = std::max(bound, b.bound());
      const bool some = bound <= static_cast<double>(enough) * (1 + 1e-12) + 4;
      if (enough < near.time) near.most = enough;  // a plan is known
      if (some) {
        near.time = enough;
        bound_ = std::max(bound_, bound);
        priced_ = true;
        return Progress::Done;
      }
      proven_ = std::max(proven_, near.time);
      if (near.time >= near.most) return Progress::Nothing;
      lowest = static_cast<double>(near.time);
      if (lowest >= highest) highest = static_cast<double>(near.most);  // longer lists are allowed now
    }
    near.time = static_cast<int64_t>((lowest + highest) / 2);
    if (highest - lowest < step()) {
      near.time = std::min(near.most, static_cast<int64_t>(highest));
      allowed = std::min(longest, 4 * allowed);
    }
  }
}

SequenceFound Sequence::look(int64_t most_ps, size_t longest, Stopwatch& watch) {
  constexpr double kWider = 1.5, kCheaper = 0.85;
  constexpr int64_t kMany = 40000;  // partial plans: worth another bound
  SequenceFound found;
  Near near{Stages(series_, views_, view_bound_, most_ps - series_.fixed_ps())};
  near.most = most_ps - series_.fixed_ps();
  const auto nothing = [&] {
    proven_ = std::max(proven_, near.most);
    found.complete = true;
    return found;
  };
  if (series_.limit() < 0 || static_cast<double>(near.most) < bound_ || near.most <= proven_)
    return nothing();
  if (!near.stages.make(watch)) return found;
  if (near.stages.hopeless()) return nothing();
  const Stages stages = near.stages;
  if (!priced_) {
    const Progress progress = price_peak(stages, near, longest, watch);
    if (progress == Progress::Stopped) return found;
    if (progress == Progress::Nothing) return nothing();
  }
  int64_t last = 0;  // partial plans, up to the last target
  for (double apart = step();; apart *= kWider) {
    const double lowest = std::max(bound_, static_cast<double>(proven_));
    const int64_t target = std::min(near.most, static_cast<int64_t>(lowest + apart));
    int64_t enough = target;
    if (target > near.time) {
      near.stages = stages;
      near.stages.lower(target);
      near.time = target;
      if (!near.stages.hopeless() && !bound_peak(near, longest, 1, enough, watch)) return found;
      if (!near.stages.hopeless() && last > kMany) {
        PeakBound& b = near.bounds.emplace_back();
        const PhasePrices prices = views_[0].times(kCheaper * scale_);
        if (!b.make(series_, near.stages, prices, enough, longest, watch)) near.bounds.pop_back();
      }
    }
    if (!near.stages.hopeless()) {
      const int64_t nodes = found.nodes;
      found = Growth(series_, near.stages, near.bounds, views_.size(), enough, watch).run(longest);
      last = found.nodes;
      found.nodes += nodes;
      if (!found.complete || found.found) return found;
    }
    proven_ = target;
    if (target >= near.most) return nothing();
  }
}

}  // namespace osdp::search
