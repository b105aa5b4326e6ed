// Columns of one segment: the ways to recompute and shard it that a plan near the bound may use.
#pragma once

#include "search/labels/chain_resources.hpp"

namespace osdp::search {

// Prices aggregated for one segment: over the phases before it, its own, and those after it.
struct StretchPrices {
  StretchPrices(const PhasePrices& prices, const ChainResources::Segment& segment)
      : before(prices.before(segment.first)),
        own(prices.of(segment.first, segment.end)),
        behind(prices.from(segment.end)) {}
  // Time + sum over phases of price x bytes of the segment with column x, counting its peak in each of its
  // own phases.
  double cost(const Stretch& x) const {
    return static_cast<double>(x.time) + before * static_cast<double>(x.after) +
           own * static_cast<double>(x.peak) + behind * static_cast<double>(x.before);
  }
  double before, own, behind;
};

// Least time + sum over phases of price x bytes of the segment, over all columns: no column costs less.
double least_cost(const ChainResources& chain, const ChainResources::Segment& segment,
                  const PhasePrices& prices);

// One plan for a whole segment: its recomputation and the choices of its operators.
struct BlockColumn : Stretch {
  Recompute way = Recompute::None;
  uint32_t row = 0;  // row of BlockColumns::choices
};

struct BlockColumns {
  std::vector<BlockColumn> list;
  size_t slots = 0;
  std::vector<int> choices;  // row-major, `slots` entries per row
  Chosen chosen(const BlockColumn& x) const { return {x.way, choices.data() + x.row * slots}; }
};

// All undominated columns (in time, before, after and peak) that cost at most `allowance` more than
// least_cost(). Returns false if there are more than `most`.
bool list_block_columns(const ChainResources& chain, const ChainResources::Segment& segment,
                        const PhasePrices& prices, double allowance, size_t most, Stopwatch& watch,
                        BlockColumns& columns);

}  // namespace osdp::search
