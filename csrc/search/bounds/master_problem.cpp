// Note [Master]
// The optimal prices are the dual solution of a small linear program: mix points (complete plans) such that
// every row holds on average, in the least time. A row may be exceeded at a high penalty. Points are
// generated one by one, as the cheapest at the current dual prices (Dantzig-Wolfe), and each pricing also
// gives a bound. The simplex basis has one column per row and one for the convexity constraint; its inverse
// is stored explicitly.
#include "search/bounds/master_problem.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace osdp::search {

Master::Master(size_t rows, const Point& first, const Prices& limit, double penalty)
    : size_(rows + 1), rows_(rows), limit_(limit), penalty_(penalty), inverse_(size_ * size_, 0.0) {
  // The initial basis: the first point, and each row's slack or excess.
  for (size_t j = 0; j < rows; ++j) {
    const double over = excess(first, j);
    basis_.push_back({over > 0 ? -2 : -1, j});
    inverse_[j * size_ + j] = over > 0 ? -1 : 1;
    inverse_[j * size_ + rows] = over > 0 ? over : -over;
    value_.push_back(std::abs(over));
  }
  points_.push_back(first);
  basis_.push_back({0, 0});
  inverse_[rows * size_ + rows] = 1;
  value_.push_back(1);
}

double Master::limit_scale(size_t j) const { return std::max(1.0, std::abs(limit_[j])); }

double Master::cost_of(const Column& c) const {
  return c.what >= 0 ? points_[c.what].time : c.what == -2 ? penalty_ : 0;
}

bool Master::has(const Column& c) const { return std::find(basis_.begin(), basis_.end(), c) != basis_.end(); }

double Master::duals(Prices& prices) {
  for (;;) {
    std::vector<double> y(size_, 0);
    for (size_t r = 0; r < size_; ++r) {
      const double cost = cost_of(basis_[r]);
      if (cost == 0) continue;
      for (size_t c = 0; c < size_; ++c) y[c] += cost * inverse_[r * size_ + c];
    }
    bool clean = true;
    for (size_t j = 0; j < rows_ && clean; ++j) {
      if (y[j] > 1e-9 * penalty_ && !has({-1, j})) clean = !enter({-1, j});
      if (clean && -y[j] > penalty_ * (1 + 1e-9) && !has({-2, j})) clean = !enter({-2, j});
    }
    if (!clean) continue;
    prices.fill(0);
    for (size_t j = 0; j < rows_; ++j) prices[j] = std::clamp(-y[j], 0.0, penalty_) / limit_scale(j);
    return y[rows_];
  }
}

void Master::add(const Point& p) {
  points_.push_back(p);
  enter({static_cast<int>(points_.size()) - 1, 0});
}

bool Master::exceeds() const {
  for (size_t r = 0; r < size_; ++r) {
    if (basis_[r].what == -2 && value_[r] > 1e-12) return true;
  }
  return false;
}

std::vector<std::pair<double, const Point*>> Master::weights() const {
  std::vector<std::pair<double, const Point*>> mixed;
  for (size_t r = 0; r < size_; ++r) {
    if (basis_[r].what >= 0 && value_[r] > 0) mixed.push_back({value_[r], &points_[basis_[r].what]});
  }
  return mixed;
}

bool Master::enter(const Column& c) {
  if (++pivots_ > 400) return false;
  std::vector<double> column(size_, 0), in(size_, 0);
  if (c.what >= 0) {
    for (size_t j = 0; j < rows_; ++j) column[j] = excess(points_[c.what], j);
    column[rows_] = 1;
  } else {
    column[c.row] = c.what == -1 ? 1 : -1;
  }
  for (size_t r = 0; r < size_; ++r) {
    for (size_t k = 0; k < size_; ++k) in[r] += inverse_[r * size_ + k] * column[k];
  }
  size_t out = size_;
  double step = std::numeric_limits<double>::infinity();
  for (size_t r = 0; r < size_; ++r) {
    if (in[r] > 1e-11 && value_[r] / in[r] < step) step = value_[r] / in[r], out = r;
  }
  if (out == size_) return false;
  const double pivot = in[out];
  for (size_t k = 0; k < size_; ++k) inverse_[out * size_ + k] /= pivot;
  for (size_t r = 0; r < size_; ++r) {
    if (r == out || in[r] == 0) continue;
    for (size_t k = 0; k < size_; ++k) inverse_[r * size_ + k] -= in[r] * inverse_[out * size_ + k];
    value_[r] = std::max(0.0, value_[r] - in[r] * step);
  }
  value_[out] = step;
  basis_[out] = c;
  return true;
}

}  // namespace osdp::search
