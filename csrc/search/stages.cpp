// Note [Stages]
// Before partial plans are put together (Note [Sequence]) each segment's list of treatments is made short:
// - A treatment that makes the bound at the phases' prices exceed what is looked for is out.
// - A phase that is within the limit whatever the lists choose needs no watching: the segment's peak is
// forgotten,
//   that is, lowered to the least one of its list. What a segment holds after its backward matters to earlier
//   phases only and is forgotten where none of those can be exceeded; what it holds before, to later ones
//   only. With fewer numbers to compare more treatments are dominated, and more partial plans.
// How much the lists can hold together is bounded as times are: a treatment that holds more at a cost counts
// that cost, at some rate, and a plan has no more to spend than lies between bound and what is looked for.
#include "search/stages.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace osdp::search {
namespace {

constexpr size_t kMostTreatments = 4000;  // of one segment
constexpr double kHuge = 1e300;

// x followed by y; each bounds what is held at most, less a penalty for its cost.
struct Most {
  double before = 0, after = 0, peak = -kHuge;
  static Most join(const Most& x, const Most& y) {
    return {x.before + y.before, x.after + y.after, std::max(x.peak + y.after, x.before + y.peak)};
  }
};

int64_t narrow(double v) {
  return v <= -static_cast<double>(kLargestSum)  ? -kLargestSum
         : v >= static_cast<double>(kLargestSum) ? kLargestSum
                                                 : static_cast<int64_t>(std::ceil(v));
}

void drop_dominated(std::vector<Item>& items) {
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.time != b.time ? a.time < b.time : a.before + a.after + a.peak < b.before + b.after + b.peak;
  });
  size_t kept = 0;
  for (const Item& x : items) {
    const bool out = std::any_of(
        items.begin(), items.begin() + static_cast<std::ptrdiff_t>(kept),
        [&](const Item& y) { return y.before <= x.before && y.after <= x.after && y.peak <= x.peak; });
    if (!out) items[kept++] = x;
  }
  items.resize(kept);
}

}  // namespace

bool Stages::make(Stopwatch& watch) {
  if (!list(watch)) return false;
  shorten();
  return !watch.spent();
}

void Stages::lower(int64_t most) {
  most_ = most;
  shorten();
}

void Stages::shorten() {
  drop_dear();
  if (hopeless_) return;
  find_extremes();
  forget_harmless();
  find_extremes();
}

bool Stages::list(Stopwatch& watch) {
  const PhasePrices& p = *prices_;
  const double allowance = static_cast<double>(most_) - bound_;
  const auto& segments = series_->segments();
  treatments_.resize(size_), items_.resize(size_);
  for (size_t s = 0; s < size_; ++s) {
    // Neighbours of one kind mostly have the same prices around them, and none inside.
    for (size_t q = s; q-- > 0 && s - q < 4 && treatments_[s] == nullptr;) {
      if (segments[q].kind == segments[s].kind && p.of(segments[q].first, segments[s].end) == 0) {
        treatments_[s] = treatments_[q];
      }
    }
    if (treatments_[s] == nullptr) {
      auto list = std::make_shared<std::vector<Treatment>>();
      if (!list_treatments(*series_, segments[s], p, allowance, kMostTreatments, watch, *list)) return false;
      treatments_[s] = std::move(list);
    }
    for (const Treatment& t : *treatments_[s]) {
      items_[s].push_back({t, static_cast<uint32_t>(&t - treatments_[s]->data())});
    }
  }
  return true;
}

// The cheapest item of a segment.
double Stages::least_cost(size_t s) const {
  const StretchPrices prices(*prices_, series_->segments()[s]);
  double least = kHuge;
  for (const Item& x : items_[s]) least = std::min(least, prices.cost(x));
  return least;
}

void Stages::drop_dear() {
  std::vector<double> least(size_);
  double sum = 0, size = 0;
  for (size_t s = 0; s < size_; ++s) {
    least[s] = least_cost(s);
    sum += least[s], size += std::abs(least[s]);
  }
  const double memory = prices_->all() * static_cast<double>(series_->limit());
  const double margin = 4 + 1e-12 * (size + memory);
  const double left = static_cast<double>(most_) - (sum - memory) + margin;
  if (left < 0) {
    hopeless_ = true;
    return;
  }
  for (size_t s = 0; s < size_; ++s) {
    const StretchPrices prices(*prices_, series_->segments()[s]);
    std::erase_if(items_[s], [&](const Item& x) { return prices.cost(x) - least[s] > left; });
  }
}

void Stages::find_extremes() {
  until_.assign(size_ + 1, {}), from_.assign(size_ + 1, {});
  for (size_t s = 0; s < size_; ++s) {
    int64_t b = kLargestSum, a = b, p = b;
    for (const Item& x : items_[s])
      b = std::min(b, x.before), a = std::min(a, x.after), p = std::min(p, x.peak);
    Extremes& u = until_[s + 1];
    u = until_[s];
    u.least_peak = std::max(u.least_peak + a, u.least_before + p);
    u.least_before += b, u.least_after += a;
  }
  for (size_t s = size_; s-- > 0;) {
    int64_t b = kLargestSum, a = b, p = b;
    for (const Item& x : items_[s])
      b = std::min(b, x.before), a = std::min(a, x.after), p = std::min(p, x.peak);
    Extremes& f = from_[s];
    f = from_[s + 1];
    f.least_peak = std::max(p + f.least_after, b + f.least_peak);
    f.least_before += b, f.least_after += a;
  }
  for (Extremes& e : until_) e.most_before = e.most_after = e.most_peak = kLargestSum;
  for (Extremes& e : from_) e.most_before = e.most_after = e.most_peak = kLargestSum;
  // What is spent on holding more: nothing counts, or bytes at so many times the price of all memory.
  std::vector<double> least(size_, kHuge);
  double sum = 0;
  for (size_t s = 0; s < size_; ++s) {
    least[s] = least_cost(s);
    sum += least[s];
  }
  const double price = prices_->all();
  const double left = static_cast<double>(most_) - (sum - price * static_cast<double>(series_->limit()));
  for (const double rate : {0.0, 0.5, 2.0, 8.0, 32.0}) {
    if (rate > 0 && price <= 0) break;
    const double bytes_per_ps = rate == 0 ? 0 : rate / price;
    const double most_spent = bytes_per_ps * std::max(left, 0.0) + (rate == 0 ? 0 : 16);
    std::vector<Most> own(size_);
    for (size_t s = 0; s < size_; ++s) {
      own[s] = {-kHuge, -kHuge, -kHuge};
      const StretchPrices prices(*prices_, series_->segments()[s]);
      for (const Item& x : items_[s]) {
        const double spent = bytes_per_ps * (prices.cost(x) - least[s]);
        own[s].before = std::max(own[s].before, static_cast<double>(x.before) - spent);
        own[s].after = std::max(own[s].after, static_cast<double>(x.after) - spent);
        own[s].peak = std::max(own[s].peak, static_cast<double>(x.peak) - spent);
      }
    }
    const auto lower = [&](Extremes& e, const Most& m) {
      e.most_before = std::min(e.most_before, narrow(m.before + most_spent));
      e.most_after = std::min(e.most_after, narrow(m.after + most_spent));
      e.most_peak = std::min(e.most_peak, m.peak == -kHuge ? -kLargestSum : narrow(m.peak + most_spent));
    };
    Most m;
    lower(until_[0], m);
    for (size_t s = 0; s < size_; ++s) lower(until_[s + 1], m = Most::join(m, own[s]));
    m = {};
    lower(from_[size_], m);
    for (size_t s = size_; s-- > 0;) lower(from_[s], m = Most::join(own[s], m));
  }
}

void Stages::forget_harmless() {
  const int64_t limit = series_->limit();
  std::vector<char> harmful(size_);
  for (size_t s = 0; s < size_; ++s) {
    int64_t most = -kLargestSum;
    for (const Item& x : items_[s]) most = std::max(most, x.peak);
    harmful[s] = until_[s].most_before + most + from_[s + 1].most_after > limit;
  }
  const auto first = static_cast<size_t>(std::find(harmful.begin(), harmful.end(), 1) - harmful.begin());
  size_t last = size_;  // one behind the last
  while (last > 0 && !harmful[last - 1]) --last;
  for (size_t s = 0; s < size_; ++s) {
    int64_t b = kLargestSum, a = b, p = b;
    for (const Item& x : items_[s])
      b = std::min(b, x.before), a = std::min(a, x.after), p = std::min(p, x.peak);
    for (Item& x : items_[s]) {
      if (!harmful[s]) x.peak = p;
      if (s <= first) x.after = a;
      if (s + 1 >= last) x.before = b;
    }
    drop_dominated(items_[s]);
  }
}

}  // namespace osdp::search
