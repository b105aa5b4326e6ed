// Note [Least peak]
// Of plans that take no time the bound by a price of the peak (Note [Price of the peak]) is the least peak
// itself, at a price of one per byte. A choice that is small in one phase is usually small in all, so few
// partial plans are undominated: a model of 100 blocks takes a millisecond.
#include "search/labels/min_peak.hpp"

#include "search/labels/peak_bound.hpp"

namespace osdp::search {

MinPeak min_peak(const ChainResources& chain, Stopwatch& watch) {
  constexpr size_t kLongest = 20000;
  constexpr double kExact = double{int64_t{1} << 53};
  MinPeak least;
  std::vector<double> last_phase(chain.operators(), 0);  // the largest one, of most plans
  last_phase.back() = 1;
  const PhasePrices prices(last_phase);
  const auto limit = static_cast<double>(chain.limit());
  double held = 0;
  for (const auto& segment : chain.segments()) held += least_cost(chain, segment, prices);
  least.complete = held > limit;
  ColumnReduction reduction(chain, prices, held - limit, 0);
  if (least.complete || !reduction.make(watch)) return least;
  PeakBound bound;
  if (!bound.make(chain, reduction, prices, 0, kLongest, watch)) return least;
  least.complete = bound.bound() > 0;
  std::vector<BlockColumn> items;
  if (least.complete || !bound.plan(reduction, items)) return least;
  Stretch whole = kNoStretch;
  std::vector<Chosen> chosen;
  for (size_t s = 0; s < items.size(); ++s) {
    whole = join(whole, items[s]);
    chosen.push_back(reduction.chosen(s, items[s]));
  }
  least.found = true, least.peak_bytes = whole.peak;
  least.complete = static_cast<double>(whole.peak) == limit + bound.bound() && limit < kExact;
  least.decision = chain.decide(chosen);
  return least;
}

}  // namespace osdp::search
