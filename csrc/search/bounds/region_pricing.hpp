// The pricing problem of a region: the cheapest plan at given prices of rows. Note [Regions] in
// bounds/region_pricing.cpp.
#pragma once

#include "search/bounds/column_pool.hpp"

namespace osdp::search {

struct Region {
  Batch lo, hi;  // accumulation equal
  Box box;
};

// A plan found by pricing, scaled to a step of Region::hi's samples.
struct Point {
  double time = 0;
  Prices bytes{};         // Evaluator::limit plus the plan's excess over it (signed) times `scale`
  double scale = 1;       // hi.size / size
  int64_t size = 1;       // batch size
  std::vector<int> ways;  // number of instances per way, indexed as in Box
};

// The costs of sharding do not depend on the batch size, so all regions with the same number of micro-batches
// share this cache. It belongs to one ColumnPool.
class Cheapest {
 public:
  explicit Cheapest(const ColumnPool& pool);

  // Chooses the cheapest options at given prices.
  void find(const Prices& prices, double time_scale);
  // Steps that find() has taken so far.
  int64_t work() const { return work_; }
  // The total cost of the operators of a way (Entry::first_way + index).
  double cost(size_t way) const { return cost_[way]; }
  // Adds `count` times the time and bytes of one way's operators.
  void add(size_t way, double count, double& time, Prices& bytes) const;

 private:
  struct Slot {
    size_t begin, options;  // range in values_: times, then each row's bytes
  };

  const size_t rows_;
  std::vector<Slot> slots_;
  std::vector<size_t> first_slot_;  // by way, plus an end entry
  std::vector<double> values_, option_cost_;
  std::vector<double> cost_;     // by way
  std::vector<uint32_t> taken_;  // by slot: the option taken
  int64_t work_ = 0;
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
  std::vector<End> ends_;  // the smallest batch first
};

}  // namespace osdp::search
