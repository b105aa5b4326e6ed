// The cheapest choice of everything in a region, at some prices of rows.
#pragma once

#include "search/table.hpp"

namespace osdp::search {

struct Region {
  Batch fastest;              // time counts at this batch size,
  Batch leanest;              // memory at this one
  int64_t largest_transient;  // options with more are out
  int64_t reserved_bytes;     // off the limit
  Box box;
  double tolerance = 1e-11;  // how near to the best bound is near enough, as a share of it
};

// What is chosen: its time and bytes, and how many instances are treated each way (as Box).
struct Point {
  double time = 0;
  Prices bytes{};
  std::vector<int> ways;
};

// The options that a transient allows, side by side, for all regions that share it: how operators are sharded
// costs the same whatever the batch size. Only ever used with one Table.
class Cheapest {
 public:
  Cheapest(const Table& table, int64_t largest_transient);

  // Of one way's operators together: its time and bytes. The last prices' answer is kept: regions that are
  // cut apart are asked at the same prices.
  struct Sum {
    double time = 0;
    Prices bytes{};
  };
  const std::vector<Sum>& at(const Prices& prices, double time_scale);  // by Entry::first_way + index

 private:
  struct Slice {  // of values_: times, then each row's bytes
    size_t begin, options;
  };
  void add(const Slice& s, const Prices& prices, double time_scale, Sum& sum);

  const size_t rows_;
  std::vector<Slice> slots_;
  std::vector<size_t> first_slot_;  // by way, and one more
  std::vector<double> values_, cost_;
  Prices last_prices_{};
  double last_scale_ = -1;
  std::vector<Sum> sums_;
};

class Evaluator {
 public:
  // `cheapest`: of the table and the region's largest transient.
  Evaluator(const Kinds& kinds, const Table& table, const Request& request, const Region& region,
            Cheapest& cheapest);
  double limit(size_t row) const { return limit_[row]; }

  // Least time_scale * time + prices * bytes.
  void at(const Prices& prices, double time_scale, Point& p);

 private:
  const Table& table_;
  const Region& region_;
  const size_t rows_;
  Cheapest& cheapest_;
  double constant_time_ = 0;
  Prices limit_{};
  std::vector<Cheapest::Sum> ways_;  // what a way costs whatever its operators choose
};

}  // namespace osdp::search
