#include "search/relaxation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace osdp::search {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The cheapest choice of everything at some prices.
struct Point {
  double time = 0;
  Prices bytes{};
  std::vector<int> ways;
};

// Region by region: the options that its transient allows, side by side.
class Evaluator {
 public:
  Evaluator(const Kinds& kinds, const Table& table, const Request& request, const Region& region)
      : table_(table), region_(region), rows_(table.rows) {
    const double acc = static_cast<double>(region.fastest.accumulation);
    constant_time_ = acc * static_cast<double>(kinds.compute_ps(region.fastest.size));
    for (size_t j = 0; j < rows_; ++j) {
      limit_[j] = static_cast<double>(request.limit_bytes - region.reserved_bytes) -
                  static_cast<double>(kinds.held_bytes(region.leanest.size));
    }
    for (const auto& entry : table.entries) {
      for (size_t w = 0; w < entry.ways.size(); ++w) {
        const auto& way = entry.ways[w];
        Way& own = ways_.emplace_back();
        own.first_slot = slots_.size();
        own.time = acc * static_cast<double>(region.fastest.size) * static_cast<double>(way.time_per_sample);
        for (size_t j = 0; j < rows_; ++j)
          own.bytes[j] = static_cast<double>(way.kept[j](region.leanest.size));
        if (region.box.hi[entry.first_way + w] == 0) continue;
        for (const auto& o : way.slots) add_slot(o);
        own.slots = slots_.size() - own.first_slot;
      }
    }
    cost_.resize(most_);
  }
  double limit(size_t row) const { return limit_[row]; }
  double time() const { return constant_time_; }

  // Least time_scale * time + prices * bytes.
  void at(const Prices& prices, double time_scale, Point& p) {
    p.time = constant_time_;
    p.bytes.fill(0);
    p.ways.assign(table_.ways, 0);
    Way sums[3];
    double cost[3];
    for (const auto& entry : table_.entries) {
      const size_t n = entry.ways.size();
      for (size_t w = 0; w < n; ++w) {
        sums[w] = ways_[entry.first_way + w];
        for (size_t k = 0; k < sums[w].slots; ++k) {
          add_cheapest(slots_[sums[w].first_slot + k], prices, time_scale, sums[w]);
        }
        cost[w] = time_scale * sums[w].time;
        for (size_t j = 0; j < rows_; ++j) cost[w] += prices[j] * sums[w].bytes[j];
      }
      // As many as possible take the cheapest way.
      const int* lo = &region_.box.lo[entry.first_way];
      const int* hi = &region_.box.hi[entry.first_way];
      int* taken = &p.ways[entry.first_way];
      int left = entry.count;
      for (size_t w = 0; w < n; ++w) left -= taken[w] = lo[w];
      while (left > 0) {
        size_t best = n;
        for (size_t w = 0; w < n; ++w) {
          if (taken[w] < hi[w] && (best == n || cost[w] < cost[best])) best = w;
        }
        const int more = std::min(left, hi[best] - taken[best]);
        taken[best] += more;
        left -= more;
      }
      for (size_t w = 0; w < n; ++w) {
        if (taken[w] == 0) continue;
        p.time += taken[w] * sums[w].time;
        for (size_t j = 0; j < rows_; ++j) p.bytes[j] += taken[w] * sums[w].bytes[j];
      }
    }
  }

 private:
  struct Way {
    double time = 0;
    Prices bytes{};
    size_t first_slot = 0, slots = 0;
  };
  struct Slice {  // of values_: times, then each row's bytes
    size_t begin, options;
  };

  void add_slot(const Table::Options& o) {
    size_t n = 0;
    const size_t begin = values_.size(), all = o.time.size();
    const auto in = [&](size_t k) { return o.transient[k] <= region_.largest_transient && o.corner[k]; };
    for (size_t k = 0; k < all; ++k) {
      if (in(k)) values_.push_back(o.time[k]), ++n;
    }
    for (size_t j = 0; j < rows_; ++j) {
      for (size_t k = 0; k < all; ++k) {
        if (in(k)) values_.push_back(o.bytes[j * all + k]);
      }
    }
    slots_.push_back({begin, n});
    most_ = std::max(most_, n);
  }

  void add_cheapest(const Slice& s, const Prices& prices, double time_scale, Way& sum) {
    const size_t n = s.options;
    const double* v = &values_[s.begin];
    for (size_t k = 0; k < n; ++k) cost_[k] = time_scale * v[k];
    for (size_t j = 0; j < rows_; ++j) {
      const double price = prices[j];
      if (price == 0) continue;
      const double* bytes = v + (j + 1) * n;
      for (size_t k = 0; k < n; ++k) cost_[k] += price * bytes[k];
    }
    size_t best = 0;
    for (size_t k = 1; k < n; ++k) {
      if (cost_[k] < cost_[best]) best = k;
    }
    sum.time += v[best];
    for (size_t j = 0; j < rows_; ++j) sum.bytes[j] += v[(j + 1) * n + best];
  }

  const Table& table_;
  const Region& region_;
  const size_t rows_;
  double constant_time_ = 0;
  Prices limit_{};
  std::vector<Way> ways_;
  std::vector<Slice> slots_;
  std::vector<double> values_, cost_;
  size_t most_ = 1;
};

// Note [Master]
// The best prices are the dual of a small linear program: mix points (choices of everything) so that every
// row is kept on average, in the least time. A row may be exceeded at a high penalty. Points are found one by
// one, as the cheapest at the present dual prices (Dantzig and Wolfe), and each such question also gives a
// bound. The simplex basis has one column per row and one for the mixture; its inverse is kept whole.
class Master {
 public:
  Master(size_t rows, const Point& first, const Prices& limit, double penalty)
      : size_(rows + 1), rows_(rows), limit_(limit), penalty_(penalty), inverse_(size_ * size_, 0.0) {
    // The first point alone; each row's slack or excess makes up for what it leaves or lacks.
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

  // Prices by row (ps per byte) and the mixture's time.
  double duals(Prices& prices) {
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
  void add(const Point& p) {
    points_.push_back(p);
    enter({static_cast<int>(points_.size()) - 1, 0});
  }
  bool exceeds() const {
    for (size_t r = 0; r < size_; ++r) {
      if (basis_[r].what == -2 && value_[r] > 1e-12) return true;
    }
    return false;
  }
  std::vector<double> mixture(size_t ways) const {
    std::vector<double> mixed(ways, 0);
    for (size_t r = 0; r < size_; ++r) {
      if (basis_[r].what < 0) continue;
      for (size_t w = 0; w < ways; ++w) mixed[w] += value_[r] * points_[basis_[r].what].ways[w];
    }
    return mixed;
  }

 private:
  struct Column {
    int what;    // a point, or -1: a row's slack, -2: its excess
    size_t row;  // of -1 and -2
    bool operator==(const Column&) const = default;
  };
  double limit_scale(size_t j) const { return std::max(1.0, std::abs(limit_[j])); }
  double excess(const Point& p, size_t j) const { return (p.bytes[j] - limit_[j]) / limit_scale(j); }
  double cost_of(const Column& c) const {
    return c.what >= 0 ? points_[c.what].time : c.what == -2 ? penalty_ : 0;
  }
  bool has(const Column& c) const { return std::find(basis_.begin(), basis_.end(), c) != basis_.end(); }

  // False where rounding leaves no pivot.
  bool enter(const Column& c) {
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
    double step = kInfinity;
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

  const size_t size_, rows_;
  const Prices limit_;
  const double penalty_;
  int pivots_ = 0;
  std::vector<double> inverse_, value_;
  std::vector<Column> basis_;
  std::vector<Point> points_;
};

struct Line {
  int candidate;
  int64_t transient, time;
  std::array<int64_t, kMostRows> bytes;
};

// Whether `a` is a number of sharded slices between one and all, and no better than mixing these two.
bool between(const std::vector<Line>& lines, const std::vector<Candidate>& all, size_t a, size_t rows,
             int64_t accumulation) {
  const Candidate& c = all[a];
  if (c.granularity < 3 || c.sharded_slices == 1 || c.sharded_slices == c.granularity) return false;
  const size_t none = all.size();
  size_t first = none, last = none;
  for (size_t b = 0; b < all.size(); ++b) {
    if (all[b].granularity != c.granularity || all[b].split != c.split) continue;
    if (all[b].sharded_slices == 1) first = b;
    if (all[b].sharded_slices == c.granularity) last = b;
  }
  if (first == none || last == none) return false;
  const int64_t n = c.granularity - 1, k = c.sharded_slices - 1;
  const Line &x = lines[first], &y = lines[last], &z = lines[a];
  if (n * z.time < (n - k) * x.time + k * y.time - 2 * n * accumulation) return false;
  for (size_t j = 0; j < rows; ++j) {
    if (n * z.bytes[j] < (n - k) * x.bytes[j] + k * y.bytes[j]) return false;
  }
  return true;
}

// Whether `Hold` is never worse than `Regather` in these rows: no row stands inside such a block, so what it
// holds is in none of them. (Should it break a phase, that phase becomes a row.)
bool hold_is_free(const Cohort& cohort) {
  return std::none_of(cohort.relation.begin(), cohort.relation.end(), [](int r) { return r >= 0; });
}

// Whole numbers near `mixed` that keep the box.
std::vector<int> rounded(const Table& table, const Box& box, const std::vector<double>& mixed) {
  std::vector<int> whole(mixed.size());
  for (const auto& entry : table.entries) {
    const size_t n = entry.ways.size();
    int left = entry.count;
    for (size_t w = entry.first_way; w < entry.first_way + n; ++w) {
      whole[w] = std::clamp(static_cast<int>(std::floor(mixed[w] + 1e-9)), box.lo[w], box.hi[w]);
      left -= whole[w];
    }
    while (left != 0) {
      const int step = left > 0 ? 1 : -1;
      size_t best = entry.first_way + n;
      for (size_t w = entry.first_way; w < entry.first_way + n; ++w) {
        if (whole[w] + step < box.lo[w] || whole[w] + step > box.hi[w]) continue;
        if (best == entry.first_way + n || step * (mixed[w] - whole[w]) > step * (mixed[best] - whole[best]))
          best = w;
      }
      whole[best] += step;
      left -= step;
    }
  }
  return whole;
}

}  // namespace

Table make_table(const Kinds& kinds, const std::vector<int>& rows, int64_t accumulation) {
  Table table;
  table.rows = rows.size();
  table.groups = make_cohorts(kinds, rows);
  for (const Cohort& group : table.groups) {
    const Kind& kind = kinds.kinds[group.kind];
    auto& entry = table.entries.emplace_back();
    entry.count = static_cast<int>(group.instances.size());
    entry.first_way = table.ways;
    const auto allowed = [&](Recompute r) {
      return std::find(kind.ways.begin(), kind.ways.end(), r) != kind.ways.end();
    };
    for (Recompute r : kind.ways) {
      if (r == Recompute::Regather && allowed(Recompute::Hold) && hold_is_free(group)) continue;
      ++table.ways;
      auto& way = entry.ways.emplace_back();
      way.way = r;
      if (r != Recompute::None) way.time_per_sample = kind.recompute_ps_per_sample;
      for (int relation : group.relation) way.kept.push_back(kept_in(relation, kind, r));
      for (size_t p = 0; p < kind.slots.size(); ++p) {
        const auto& all = kind.slots[p].candidates[static_cast<int>(r)];
        if (all.empty()) continue;
        std::vector<Line> lines;
        for (size_t c = 0; c < all.size(); ++c) {
          Line line{static_cast<int>(c),
                    all[c].transient_bytes,
                    accumulation * all[c].communication_ps + all[c].optimizer_ps,
                    {}};
          for (size_t j = 0; j < rows.size(); ++j) {
            line.bytes[j] = held_in(group.relation[j], static_cast<int>(p), r, all[c], accumulation > 1);
          }
          lines.push_back(line);
        }
        auto& options = way.slots.emplace_back();
        for (size_t a = 0; a < lines.size(); ++a) {
          bool dominated = false;
          for (size_t b = 0; b < lines.size() && !dominated; ++b) {
            const Line &x = lines[a], &y = lines[b];
            if (a == b || y.time > x.time || y.transient > x.transient) continue;
            bool no_better = true;
            bool equal = y.time == x.time && y.transient == x.transient;
            for (size_t j = 0; j < rows.size() && no_better; ++j) {
              no_better &= y.bytes[j] <= x.bytes[j];
              equal &= y.bytes[j] == x.bytes[j];
            }
            dominated = no_better && (!equal || b < a);
          }
          if (dominated) continue;
          options.candidate.push_back(lines[a].candidate);
          options.transient.push_back(lines[a].transient);
          options.time.push_back(static_cast<double>(lines[a].time));
          options.corner.push_back(!between(lines, all, a, rows.size(), accumulation));
        }
        for (size_t j = 0; j < rows.size(); ++j) {
          for (int c : options.candidate) options.bytes.push_back(static_cast<double>(lines[c].bytes[j]));
        }
      }
    }
  }
  return table;
}

Box everything(const Table& table) {
  Box box;
  for (const auto& entry : table.entries) {
    for (size_t w = 0; w < entry.ways.size(); ++w) {
      box.lo.push_back(entry.ways.size() == 1 ? entry.count : 0);
      box.hi.push_back(entry.count);
    }
  }
  return box;
}

Bounded relax(const Kinds& kinds, const Table& table, const Request& request, const Region& region,
              const Prices& guess, double enough) {
  Evaluator evaluate(kinds, table, request, region);
  const size_t rows = table.rows;
  Bounded best;
  Prices limit{};
  for (size_t j = 0; j < rows; ++j) limit[j] = evaluate.limit(j);
  double magnitude = 0;
  const auto bound = [&](const Point& p, const Prices& prices) {
    double value = p.time, size = p.time;
    for (size_t j = 0; j < rows; ++j) {
      value += prices[j] * (p.bytes[j] - limit[j]);
      size += prices[j] * (p.bytes[j] + std::abs(limit[j]));
    }
    if (!best.feasible || value > best.time) {
      best.feasible = true;
      best.time = value;
      best.prices = prices;
      magnitude = size;
    }
    return value;
  };
  // 2 ps per operator: options that mixtures are as good as, but for rounding (Table::Options::corner).
  double operators = 0;
  for (const auto& entry : table.entries) {
    size_t slots = 0;
    for (const auto& way : entry.ways) slots = std::max(slots, way.slots.size());
    operators += static_cast<double>(slots) * entry.count;
  }
  const auto done = [&]() -> Bounded& {
    for (size_t j = 1; j < rows; ++j) {
      if (best.prices[j] > best.prices[best.row]) best.row = j;
    }
    best.error = 1 + 2 * operators * static_cast<double>(region.fastest.accumulation) + 4e-14 * magnitude;
    return best;
  };
  Point point;
  evaluate.at(guess, 1, point);
  bound(point, guess);
  best.ways = point.ways;
  if (best.time > enough + 1e-9 * std::abs(enough)) return done();
  for (double penalty = 8 * std::max(point.time, 1.0);; penalty *= 64) {
    Master master(rows, point, limit, penalty);
    Prices prices;
    for (int turn = 0; turn < 120; ++turn) {
      const double upper = master.duals(prices);
      evaluate.at(prices, 1, point);
      const double value = bound(point, prices);
      if (best.time > enough + 1e-9 * std::abs(enough)) break;
      const double near = region.tolerance * std::abs(upper);
      if (value >= upper - near - 1e-11 * std::abs(value) || best.time >= upper - near) {
        break;
      }
      master.add(point);
    }
    best.ways = rounded(table, region.box, master.mixture(table.ways));
    if (best.time > enough + 1e-9 * std::abs(enough) || !master.exceeds()) return done();
    // Do the prices show that nothing keeps the rows? They count for memory alone.
    Point least;
    double over = 0, size = 0;
    evaluate.at(prices, 0, least);
    for (size_t j = 0; j < rows; ++j) {
      over += prices[j] * (least.bytes[j] - limit[j]);
      size += prices[j] * (least.bytes[j] + std::abs(limit[j]));
    }
    if (over > 1e-13 * size) return {};
    for (size_t j = 0; j < rows; ++j) {
      Prices alone{};
      alone[j] = 1;
      evaluate.at(alone, 0, least);
      if (least.bytes[j] > limit[j]) return {};
    }
    if (penalty > 1e30) return done();
    point = least;
  }
}

}  // namespace osdp::search
