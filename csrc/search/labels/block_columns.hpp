// The ways to treat one segment that a fast plan may use.
#pragma once

#include "search/labels/chain_resources.hpp"

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

// Prices as one segment sees them: of the phases before it, its own, and those behind.
struct StretchPrices {
  StretchPrices(const PhasePrices& prices, const ChainResources::Segment& segment)
      : before(prices.before(segment.first)),
        own(prices.of(segment.first, segment.end)),
        behind(prices.from(segment.end)) {}
  // Time + sum over phases of price x bytes of the segment, treated so.
  double cost(const Stretch& x) const {
    return static_cast<double>(x.time) + before * static_cast<double>(x.after) +
           own * static_cast<double>(x.peak) + behind * static_cast<double>(x.before);
  }
  double before, own, behind;
};

// Least time + sum over phases of price x bytes of the segment, over all columns: no column costs less.
double least_cost(const ChainResources& chain, const ChainResources::Segment& segment,
                  const PhasePrices& prices);

// One way to treat one segment whole.
struct BlockColumn : Stretch {
  Recompute way = Recompute::None;
  uint32_t row = 0;  // of BlockColumns::choices
};

struct BlockColumns {
  std::vector<BlockColumn> list;
  size_t slots = 0;
  std::vector<int> choices;  // rows of `slots`
  Chosen chosen(size_t i) const { return {list[i].way, choices.data() + list[i].row * slots}; }
};

// All columns that cost at most `allowance` more than least_cost(), without those that another one is no
// worse than in all four numbers. False where there are more than `most`.
bool list_block_columns(const ChainResources& chain, const ChainResources::Segment& segment,
                        const PhasePrices& prices, double allowance, size_t most, Stopwatch& watch,
                        BlockColumns& columns);

}  // namespace osdp::search
