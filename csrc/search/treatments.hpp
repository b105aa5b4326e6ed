// The ways to treat one segment that a fast plan may use.
#pragma once

#include "search/series.hpp"

namespace osdp::search {

// Prices of phases, ps per byte, summed from the left so that a range of phases costs one subtraction.
class PhasePrices {
 public:
  explicit PhasePrices(const std::vector<double>& prices);
  PhasePrices times(double scale) const {
    PhasePrices scaled = *this;
    for (double& s : scaled.sums_) s *= scale;
    return scaled;
  }
  double before(size_t phase) const { return sums_[phase]; }  // of all phases before this one
  double from(size_t phase) const { return sums_.back() - sums_[phase]; }
  double of(size_t first, size_t end) const { return sums_[end] - sums_[first]; }
  double all() const { return sums_.back(); }

 private:
  std::vector<double> sums_;
};

// Time + sum over phases of price x bytes of the segment, treated so.
inline double cost_of(const Stretch& x, const Series::Segment& segment, const PhasePrices& prices) {
  return static_cast<double>(x.time) + prices.before(segment.first) * static_cast<double>(x.after) +
         prices.of(segment.first, segment.end) * static_cast<double>(x.peak) +
         prices.from(segment.end) * static_cast<double>(x.before);
}

// Least time + sum over phases of price x bytes of the segment, over all treatments: no treatment costs less.
double least_cost(const Series& series, const Series::Segment& segment, const PhasePrices& prices);

// All treatments that cost at most `allowance` more than least_cost(), without those that another one is no
// worse than in all four numbers. False where there are more than `most`.
bool list_treatments(const Series& series, const Series::Segment& segment, const PhasePrices& prices,
                     double allowance, size_t most, Stopwatch& watch, std::vector<Treatment>& list);

}  // namespace osdp::search
