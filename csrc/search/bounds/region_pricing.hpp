// The cheapest choice of everything in a region, at some prices of rows. Note [Regions] in
// bounds/region_pricing.cpp.
#pragma once

#include "search/bounds/column_pool.hpp"

namespace osdp::search {

struct Region {
  Batch lo, hi;                // accumulation equal
  size_t lean = 0, large = 0;  // largest transients, as indices of Kinds::transients
  Box box;
  double tolerance = 1e-11;  // how near to the best bound is near enough, as a share of it
};

// What is chosen, scaled to a step of Region::hi's samples.
struct Point {
  double time = 0;
  Prices bytes{};         // as far above or below Evaluator::limit as the plan, times the scale
  double scale = 1;       // hi.size / size
  int64_t size = 1;       // batch
  size_t transient = 0;   // index, of the middle of its band
  std::vector<int> ways;  // how many instances are treated each way, as Box
};

// Largest transients next to each other. A region has at most 64 of them, or each transient is one: a band
// allows the options of its largest and reserves for its smallest.
struct Bands {
  static constexpr size_t kMost = 64;
  size_t lean = 0, large = 0;  // indices of Kinds::transients
  size_t all() const { return large - lean + 1; }
  size_t count() const { return all() < kMost ? all() : kMost; }
  size_t first(size_t band) const { return lean + band * all() / count(); }
  size_t last(size_t band) const { return first(band + 1) - 1; }
};

// How operators are sharded costs the same whatever the batch size: all regions with as many micro-batches
// share this. Only ever used with one ColumnPool.
class Cheapest {
 public:
  Cheapest(const ColumnPool& pool, const std::vector<int64_t>& transients);

  // At some prices: by way (Entry::first_way + index) its operators' cost together, and by slot the option
  // that they take.
  struct Answer {
    Prices prices{};
    double time_scale = -1;
    Bands bands;
    std::vector<double> cost;     // [way][band]
    std::vector<uint32_t> taken;  // [slot][band]
  };
  struct View {  // of an answer, which may have more bands, before and behind
    const Answer* answer;
    size_t first, stride;
    const double* cost(size_t way) const { return &answer->cost[way * stride + first]; }
  };
  View at(const Prices& prices, double time_scale, const Bands& bands);
  // Adds `count` times the time and bytes of one way's operators.
  void add(const View& view, size_t way, size_t band, double count, double& time, Prices& bytes) const;

 private:
  struct Slot {
    size_t begin, options;  // of values_: times, then each row's bytes; options by rising transient
    size_t sizes;           // of sizes_: their transients
  };
  void find(Answer& answer);

  const size_t rows_, stride_;  // bands at most
  std::vector<Slot> slots_;
  std::vector<size_t> first_slot_;  // by way, and one more
  const std::vector<int64_t>& transients_;
  std::vector<int64_t> sizes_;
  std::vector<double> values_, cost_;
  std::vector<int64_t> last_;      // by band, bytes
  std::array<Answer, 4> answers_;  // the last ones: regions that are cut apart are asked at the same prices
  size_t next_ = 0;
};

class Evaluator {
 public:
  // `cheapest`: of the pool.
  Evaluator(const Kinds& kinds, const ColumnPool& pool, const Request& request, const Region& region,
            Cheapest& cheapest);
  double limit(size_t row) const { return limit_[row]; }

  // Least time_scale * time + prices * bytes.
  void at(const Prices& prices, double time_scale, Point& p);

 private:
  struct Own {  // what a way costs whatever its operators choose
    double time = 0;
    Prices bytes{};
  };
  struct End {  // of the interval of batch sizes
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
  std::vector<double> reserve_;  // by band, beyond that of the leanest
  std::vector<End> ends_;        // the smallest batch first
  std::vector<double> total_;
};

}  // namespace osdp::search
