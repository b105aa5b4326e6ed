// The pricing problem of a region: the cheapest plan at given prices of rows. Note [Regions] in
// bounds/region_pricing.cpp.
#pragma once

#include "search/bounds/column_pool.hpp"

namespace osdp::search {

struct Region {
  Batch lo, hi;  // accumulation equal
  size_t transient_lo = 0,
         transient_hi = 0;  // range of the largest transient, as indices of EquivalenceClasses::transients
  Box box;
};

// A plan found by pricing, scaled to a step of Region::hi's samples.
struct Point {
  double time = 0;
  Prices bytes{};         // Evaluator::limit plus the plan's excess over it (signed) times `scale`
  double scale = 1;       // hi.size / size
  int64_t size = 1;       // batch size
  size_t transient = 0;   // index of the middle of its band
  std::vector<int> ways;  // number of instances per way, indexed as in Box
};

// A band is a range of consecutive values of the largest transient. It allows the options of its largest
// value and reserves for its smallest, which keeps bounds valid. A region has at most 64 bands; with no more
// transients than that each is its own band.
struct Bands {
  static constexpr size_t kMost = 64;
  size_t transient_lo = 0, transient_hi = 0;  // indices of EquivalenceClasses::transients
  size_t all() const { return transient_hi - transient_lo + 1; }
  size_t count() const { return all() < kMost ? all() : kMost; }
  size_t first(size_t band) const { return transient_lo + band * all() / count(); }
  size_t last(size_t band) const { return first(band + 1) - 1; }
};

// The costs of sharding do not depend on the batch size, so all regions with the same number of micro-batches
// share this cache. It belongs to one ColumnPool.
class Cheapest {
 public:
  Cheapest(const ColumnPool& pool, const std::vector<int64_t>& transients);

  // Chooses the cheapest options at given prices, for each band.
  void find(const Prices& prices, double time_scale, const Bands& bands);
  // By band: the total cost of the operators of a way (Entry::first_way + index).
  const double* cost(size_t way) const { return &cost_[way * stride_]; }
  // Adds `count` times the time and bytes of one way's operators.
  void add(size_t way, size_t band, double count, double& time, Prices& bytes) const;

 private:
  struct Slot {
    size_t begin, options;  // range in values_: times, then each row's bytes; options by ascending transient
    size_t sizes;           // begin in sizes_: their transients
  };

  const size_t rows_, stride_;  // largest number of bands
  std::vector<Slot> slots_;
  std::vector<size_t> first_slot_;  // by way, plus an end entry
  const std::vector<int64_t>& transients_;
  std::vector<int64_t> sizes_;
  std::vector<double> values_, option_cost_;
  std::vector<int64_t> last_;    // by band: its largest transient in bytes
  std::vector<double> cost_;     // [way][band]
  std::vector<uint32_t> taken_;  // [slot][band]: the option taken
};

class Evaluator {
 public:
  // `cheapest` must belong to `pool`.
  Evaluator(const EquivalenceClasses& classes, const ColumnPool& pool, const Request& request,
            const Region& region, Cheapest& cheapest);
  double limit(size_t row) const { return limit_[row]; }

  // Least time_scale * time + prices * bytes.
  void at(const Prices& prices, double time_scale, Point& p);

 private:
  struct Own {  // costs of a way that are independent of its operators' choices
    double time = 0;
    Prices bytes{};
  };
  struct End {  // one end of the interval of batch sizes
    int64_t size = 1;
    double scale = 1, time = 0, held = 0;
    std::vector<Own> ways;
  };
  double fill(const ColumnPool::Entry& entry, const double* cost, int* taken) const;

  const ColumnPool& pool_;
  const Region& region_;
  const size_t rows_;
  Cheapest& cheapest_;
  Prices limit_{};
  const Bands bands_;
  std::vector<double> reserve_;  // by band, minus that of the first band
  std::vector<End> ends_;        // the smallest batch first
  std::vector<double> total_;
};

}  // namespace osdp::search
