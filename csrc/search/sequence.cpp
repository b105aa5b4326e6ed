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
// above the best bound, and further, until one is found: the best.
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
  bound_ = sum - memory - 1 - 1e-12 * (sum + std::abs(memory));
}

// Bounds at several prices of the peak, about the best one: a plan over the limit asks for more, one within
// it for less. Such a plan's time is enough for `most`. False where a list grows longer than `longest`.
bool Sequence::bound_peak(const Stages& stages, size_t longest, double scale, size_t many, int64_t& most,
                          std::vector<PeakBound>& bounds, Stopwatch& watch) const {
  const auto limit = static_cast<double>(series_.limit());
  const PeakBound *over = nullptr, *within = nullptr;
  bounds.clear();
  bounds.reserve(many);
  while (bounds.size() < many) {
    PeakBound& b = bounds.emplace_back();
    if (!b.make(series_, stages, views_[0].times(scale), most, longest, watch)) {
      bounds.pop_back();
      return !bounds.empty();
    }
    if (b.bound() > static_cast<double>(most) || views_[0].all() <= 0) return true;
    const bool first = over == nullptr || within == nullptr;
    if (b.peak() <= limit) {
      within = &b;
      most = std::min(most, static_cast<int64_t>(std::ceil(b.time())) + 4);
    } else {
      over = &b;
    }
    if (over != nullptr && within != nullptr) {  // where the two plans are as good as each other
      const double price = (within->time() - over->time()) / (over->peak() - within->peak());
      if (!first && std::abs(price - b.price()) < 1e-3 * b.price()) return true;
      scale = price / views_[0].all();
    } else {
      scale *= within == nullptr ? 1.25 : 0.8;
    }
  }
  return true;
}

SequenceFound Sequence::look(int64_t most_ps, size_t longest, Stopwatch& watch) {
  constexpr size_t kShort = 600;               // last parts in a list
  constexpr double kFirst = 4e-4, kWider = 2;  // of the bound: plans are looked for so far above it
  SequenceFound found;
  int64_t most = most_ps - series_.fixed_ps();
  const auto nothing = [&] {
    found.complete = true;
    return found;
  };
  if (series_.limit() < 0 || static_cast<double>(most) < bound_) return nothing();
  Stages stages(series_, views_, bound_, most);
  if (!stages.make(watch)) return found;
  if (stages.hopeless()) return nothing();
  // First the bound, from plans of at most `near`: with too few there is none, with too many lists grow long.
  const double step = std::max(2.0, kFirst * std::abs(bound_ps()));
  Stages few = stages;  // that the bounds are of
  std::vector<PeakBound> bounds;
  double lowest = bound_, highest = static_cast<double>(most);
  int64_t near = most;  // that the bounds hold for
  size_t allowed = kShort;
  for (;;) {
    if (watch.spent()) return found;
    few = stages;
    if (near < most) few.lower(near);
    bounds.clear();
    int64_t enough = near;
    const bool listed = few.hopeless() || bound_peak(few, allowed, scale_, 4, enough, bounds, watch);
    if (watch.stopped()) return found;
    if (!listed) {
      if (near == static_cast<int64_t>(highest) && allowed >= longest) return found;
      highest = static_cast<double>(near);
    } else {
      double bound = few.hopeless() ? PeakBound::kNothing : lowest;
      for (const PeakBound& b : bounds) bound = std::max(bound, b.bound());
      const bool some = bound <= static_cast<double>(enough) * (1 + 1e-12) + 4;
      if (enough < near) most = enough;  // a plan is known
      if (some) {
        lowest = bound, near = enough;
        break;
      }
      if (near >= most) return nothing();
      lowest = static_cast<double>(near);
      if (lowest >= highest) highest = static_cast<double>(most);  // longer lists are allowed now
    }
    near = static_cast<int64_t>((lowest + highest) / 2);
    if (highest - lowest < step) {
      near = std::min(most, static_cast<int64_t>(highest));
      allowed = std::min(longest, 4 * allowed);
    }
  }
  for (const PeakBound& b : bounds) {
    if (b.bound() >= lowest && views_[0].all() > 0) scale_ = b.price() / views_[0].all();
  }
  for (double apart = step;; apart *= kWider) {
    const int64_t target = std::min(most, static_cast<int64_t>(lowest + apart));
    int64_t enough = target;
    if (target > near) {
      few = stages;
      few.lower(target);
      if (!few.hopeless() && !bound_peak(few, longest, scale_, 2, enough, bounds, watch)) return found;
      near = enough;
    }
    if (!few.hopeless()) {
      const int64_t nodes = found.nodes;
      found = Growth(series_, few, bounds, views_.size(), enough, watch).run(longest);
      found.nodes += nodes;
      if (!found.complete || found.found) return found;
    }
    if (target >= most) return nothing();
  }
}

}  // namespace osdp::search
