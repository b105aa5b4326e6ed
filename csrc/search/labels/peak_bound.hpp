// How fast the last segments of a chain can be, given what the first ones hold: a bound that knows every
// phase and one price. Note [Price of the peak] in labels/peak_bound.cpp.
#pragma once

#include "search/labels/column_reduction.hpp"
#include "search/labels/labels.hpp"

namespace osdp::search {

class PeakBound {
 public:
  static constexpr double kNothing = 1e300;  // no plan at all

  // At the sum of these prices. False where lists grow longer than `longest`, or time ran out.
  bool make(const ChainResources& chain, const ColumnReduction& reduction, const PhasePrices& prices,
            int64_t most, size_t longest, Stopwatch& watch);

  // Of the plans that `most` allows none that begins with `first`, of the segments before s, takes less.
  double after(size_t s, const Label& first) const {
    const Moved& m = moved_[s];
    const Front& f = fronts_[m.front];
    const double room = static_cast<double>(first.peak) - static_cast<double>(first.before) - m.net;
    size_t low = 0;  // the first with net <= room; without branches, since no one could guess them
    for (size_t left = f.net.size(); left > 0;) {
      const size_t half = (left + 1) / 2;
      low += f.net[low + half - 1] > room ? half : 0;
      left -= half;
    }
    double least = low < f.net.size() ? f.cost[low] : kNothing;
    if (low > 0) least = std::min(least, f.least[low - 1] - price_ * room);
    return static_cast<double>(first.time) + m.cost + least -
           price_ * (limit_ - static_cast<double>(first.peak));
  }
  // The items of the plan at which bound() is reached, by segment. False where rounding hides it.
  bool plan(const ColumnReduction& reduction, std::vector<Item>& items) const;
  // Of all plans that `most` allows; and the plan whose time + price * (peak - limit) this is.
  double bound() const { return bound_; }
  double time() const { return time_; }
  double peak() const { return peak_; }
  double price() const { return price_; }

 private:
  // Last parts, cheapest first: cost = time + price * after, net = peak - after, falling.
  struct Front {
    std::vector<double> cost, net;
    std::vector<double> least;  // of cost + price * net, up to here
  };
  struct Moved {  // a front whose parts all cost and hold so much more
    size_t front = 0;
    double cost = 0, net = 0;
  };
  double price_ = 0, limit_ = 0, bound_ = kNothing, time_ = 0, peak_ = 0;
  double cost_ = 0, net_ = 0;  // of the same plan
  std::vector<Front> fronts_;  // the first is empty
  std::vector<Moved> moved_;   // by segment: of it and those behind it
};

}  // namespace osdp::search
