// A lower bound of the time of a chain's last segments, given the memory of the first ones. It covers every
// phase with a single price. Note [Price of the peak] in labels/peak_bound.cpp.
#pragma once

#include "search/labels/column_reduction.hpp"
#include "search/labels/labels.hpp"

namespace osdp::search {

class PeakBound {
 public:
  static constexpr double kNothing = 1e300;  // no plan exists

  // Uses the sum of these prices as the price of the peak. False if lists exceed `longest`, or if the budget
  // is spent.
  bool make(const ChainResources& chain, const ColumnReduction& reduction, const PhasePrices& prices,
            int64_t most, size_t longest, Stopwatch& watch);

  // A lower bound of the time of plans, up to `most`, that extend the label `first` of the segments before s.
  double after(size_t s, const Label& first) const {
    const Front& f = fronts_[s];
    const double room = static_cast<double>(first.peak) - static_cast<double>(first.before);
    size_t low = 0;  // the first with net <= room; branch-free, since branches would be mispredicted
    for (size_t left = f.net.size(); left > 0;) {
      const size_t half = (left + 1) / 2;
      low += f.net[low + half - 1] > room ? half : 0;
      left -= half;
    }
    double least = low < f.net.size() ? f.cost[low] : kNothing;
    if (low > 0) least = std::min(least, f.least[low - 1] - price_ * room);
    return static_cast<double>(first.time) + least - price_ * (limit_ - static_cast<double>(first.peak));
  }
  // The items, by segment, of the plan that attains bound(). False if rounding prevents its reconstruction.
  bool plan(const ColumnReduction& reduction, std::vector<BlockColumn>& items) const;
  // The bound over all plans up to `most`, and the time and peak of the plan that attains it as time + price
  // * (peak - limit).
  double bound() const { return bound_; }
  double time() const { return time_; }
  double peak() const { return peak_; }
  double price() const { return price_; }

 private:
  // Undominated plans of the last segments, cheapest first: cost = time + price * after; net = peak - after,
  // decreasing.
  struct Front {
    std::vector<double> cost, net;
    std::vector<double> least;  // prefix minimum of cost + price * net
  };
  double price_ = 0, limit_ = 0, bound_ = kNothing, time_ = 0, peak_ = 0;
  double cost_ = 0, net_ = 0;  // of the same plan
  std::vector<Front> fronts_;  // by segment: for it and all later ones
};

}  // namespace osdp::search
