// The linear program whose dual values are the optimal prices of rows. Note [Master] in
// bounds/master_problem.cpp.
#pragma once

#include "search/bounds/region_pricing.hpp"

namespace osdp::search {

class Master {
 public:
  // `penalty`: picoseconds for exceeding a row by its whole limit.
  Master(size_t rows, const Point& first, const Prices& limit, double penalty);

  // Computes the prices by row (ps per byte); returns the dual value of the convexity constraint.
  double duals(Prices& prices);
  void add(const Point& p);
  // Whether the optimal mixture violates a row.
  bool exceeds() const;
  // The points of the optimal mixture with their weights.
  std::vector<std::pair<double, const Point*>> weights() const;

 private:
  struct Column {
    int what;    // index of a point, or -1: a row's slack, -2: a row's excess
    size_t row;  // of -1 and -2
    bool operator==(const Column&) const = default;
  };
  double limit_scale(size_t j) const;
  double excess(const Point& p, size_t j) const { return (p.bytes[j] - limit_[j]) / limit_scale(j); }
  double cost_of(const Column& c) const;
  bool has(const Column& c) const;
  bool enter(const Column& c);  // false if rounding leaves no pivot

  const size_t size_, rows_;
  const Prices limit_;
  const double penalty_;
  int pivots_ = 0;
  std::vector<double> inverse_, value_;
  std::vector<Column> basis_;
  std::vector<Point> points_;
};

}  // namespace osdp::search
