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

class Evaluator {
 public:
  Evaluator(const Kinds& kinds, const Table& table, const Request& request, const Region& region)
      : table_(table), region_(region) {
    const double acc = static_cast<double>(region.fastest.accumulation);
    constant_time_ = acc * static_cast<double>(kinds.compute_ps(region.fastest.size));
    for (size_t j = 0; j < table.rows; ++j) {
      limit_[j] = static_cast<double>(request.limit_bytes - region.reserved_bytes) -
                  static_cast<double>(kinds.held_bytes(region.leanest.size));
    }
    for (const auto& entry : table.entries) {
      for (const auto& way : entry.ways) {
        Way w;
        w.time = acc * static_cast<double>(region.fastest.size) * static_cast<double>(way.time_per_sample);
        for (size_t j = 0; j < table.rows; ++j) w.bytes[j] = static_cast<double>(way.kept[j](region.leanest.size));
        fixed_.push_back(w);
      }
    }
  }
  double limit(size_t row) const { return limit_[row]; }

  // Least time_scale * time + prices * bytes.
  void at(const Prices& prices, double time_scale, Point& p) const {
    p.time = constant_time_;
    p.bytes.fill(0);
    p.ways.assign(table_.ways, 0);
    Way sums[3];
    double cost[3];
    for (const auto& entry : table_.entries) {
      const size_t n = entry.ways.size();
      for (size_t w = 0; w < n; ++w) {
        const size_t index = entry.first_way + w;
        sums[w] = fixed_[index];
        cost[w] = 0;
        if (region_.box.hi[index] == 0) continue;
        for (const auto& slot : entry.ways[w].slots) add_cheapest(slot, prices, time_scale, sums[w]);
        cost[w] = time_scale * sums[w].time;
        for (size_t j = 0; j < table_.rows; ++j) cost[w] += prices[j] * sums[w].bytes[j];
      }
      // As many as possible take the cheapest way.
      int left = entry.count;
      for (size_t w = 0; w < n; ++w) {
        p.ways[entry.first_way + w] = region_.box.lo[entry.first_way + w];
        left -= region_.box.lo[entry.first_way + w];
      }
      while (left > 0) {
        size_t best = n;
        for (size_t w = 0; w < n; ++w) {
          const size_t index = entry.first_way + w;
          if (p.ways[index] < region_.box.hi[index] && (best == n || cost[w] < cost[best])) best = w;
        }
        const size_t index = entry.first_way + best;
        const int take = std::min(left, region_.box.hi[index] - p.ways[index]);
        p.ways[index] += take;
        left -= take;
      }
      for (size_t w = 0; w < n; ++w) {
        const double count = p.ways[entry.first_way + w];
        p.time += count * sums[w].time;
        for (size_t j = 0; j < table_.rows; ++j) p.bytes[j] += count * sums[w].bytes[j];
      }
    }
  }

 private:
  struct Way {
    double time = 0;
    Prices bytes{};
  };

  void add_cheapest(const Table::Options& o, const Prices& prices, double time_scale, Way& sum) const {
    const size_t n = o.time.size();
    if (n == 0) return;
    size_t best = n;
    double least = kInfinity;
    for (size_t k = 0; k < n; ++k) {
      if (o.transient[k] > region_.largest_transient) continue;
      double cost = time_scale * o.time[k];
      for (size_t j = 0; j < table_.rows; ++j) {
        if (prices[j] != 0) cost += prices[j] * o.bytes[j * n + k];
      }
      if (cost < least) least = cost, best = k;
    }
    sum.time += o.time[best];
    for (size_t j = 0; j < table_.rows; ++j) sum.bytes[j] += o.bytes[j * n + best];
  }

  const Table& table_;
  const Region& region_;
  double constant_time_ = 0;
  Prices limit_{};
  std::vector<Way> fixed_;
};

// The best price along one direction: rows weighted by `direction`. A one-dimensional concave maximum, found by
// intersecting the lines of two points until no point lies below their intersection.
struct Ray {
  bool feasible = false;
  double time = 0, price = 0;
  Point lean, fast;   // both optimal at the price; lean within the weighted limit, fast not (unless price is 0)
  double share = 0;   // of fast, so that the mixture meets the weighted limit
};

Ray along(const Evaluator& evaluate, const Prices& direction, size_t rows, int* work) {
  Ray ray;
  double limit = 0;
  for (size_t j = 0; j < rows; ++j) limit += direction[j] * evaluate.limit(j);
  const auto weight = [&](const Point& p) {
    double bytes = 0;
    for (size_t j = 0; j < rows; ++j) bytes += direction[j] * p.bytes[j];
    return bytes;
  };
  const auto ask = [&](double price, double scale, Point& p) {
    Prices prices{};
    for (size_t j = 0; j < rows; ++j) prices[j] = price * direction[j];
    evaluate.at(prices, scale, p);
    ++*work;
  };
  // Of equally fast options the smaller: a price that tips no scale otherwise.
  ask(1e-9, 1, ray.fast);
  if (weight(ray.fast) <= limit) {
    ray.feasible = true;
    ray.lean = ray.fast;
    ray.price = 1e-9;
    ray.time = ray.fast.time - ray.price * (limit - weight(ray.fast));
    if (ray.time < 0) ray.time = 0;
    return ray;
  }
  ask(1, 1e-9, ray.lean);
  if (weight(ray.lean) > limit) {
    ask(1, 0, ray.lean);  // truly the least
    if (weight(ray.lean) > limit) return ray;
  }
  ray.feasible = true;
  Point next;
  for (int round = 0; round < 60; ++round) {
    const double fast = weight(ray.fast), lean = weight(ray.lean);
    ray.price = std::max(0.0, (ray.lean.time - ray.fast.time) / (fast - lean));
    const double line = ray.lean.time + ray.price * (lean - limit);
    ask(ray.price, 1, next);
    const double bytes = weight(next);
    const double value = next.time + ray.price * (bytes - limit);
    ray.time = std::min(line, value);
    ray.share = (limit - lean) / (fast - lean);
    if (value >= line - 1e-14 * std::abs(line) - 1e-3 || bytes == fast || bytes == lean) break;
    std::swap(bytes <= limit ? ray.lean : ray.fast, next);
  }
  return ray;
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
    table.ways += kind.ways.size();
    for (Recompute r : kind.ways) {
      auto& way = entry.ways.emplace_back();
      way.way = r;
      if (r != Recompute::None) way.time_per_sample = kind.recompute_ps_per_sample;
      for (int relation : group.relation) way.kept.push_back(kept_in(relation, kind, r));
      for (size_t p = 0; p < kind.slots.size(); ++p) {
        const auto& all = kind.slots[p].candidates[static_cast<int>(r)];
        if (all.empty()) continue;
        struct Line {
          int candidate;
          int64_t transient, time;
          std::array<int64_t, kMostRows> bytes;
        };
        std::vector<Line> lines;
        for (size_t c = 0; c < all.size(); ++c) {
          Line line{static_cast<int>(c), all[c].transient_bytes,
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
            bool no_better = a != b && y.time <= x.time && y.transient <= x.transient;
            bool equal = y.time == x.time && y.transient == x.transient;
            for (size_t j = 0; j < rows.size(); ++j) {
              no_better &= y.bytes[j] <= x.bytes[j];
              equal &= y.bytes[j] == x.bytes[j];
            }
            dominated = no_better && (!equal || b < a);
          }
          if (dominated) continue;
          options.candidate.push_back(lines[a].candidate);
          options.transient.push_back(lines[a].transient);
          options.time.push_back(static_cast<double>(lines[a].time));
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
              size_t first_row) {
  // Note [Several rows]
  // Begin with one row. Where the mixture of the two solutions at its best price keeps every other row, that is
  // the relaxation's optimum. Else turn the direction towards the row that is broken most, by bisection until
  // both are met, and look again. Any prices give a valid bound, so the turning may stop when it likes.
  const Evaluator evaluate(kinds, table, request, region);
  Bounded best;
  int work = 0;
  Prices direction{};
  direction[first_row] = 1;
  Ray ray = along(evaluate, direction, table.rows, &work);
  if (!ray.feasible) return best;
  const auto note = [&](const Ray& r, const Prices& d) {
    if (best.feasible && r.time <= best.time) return;
    best.feasible = true;
    best.time = r.time;
    for (size_t j = 0; j < table.rows; ++j) best.prices[j] = r.price * d[j];
    best.ways = r.lean.ways;
  };
  const auto excess = [&](const Ray& r, size_t row) {
    return r.lean.bytes[row] + r.share * (r.fast.bytes[row] - r.lean.bytes[row]) - evaluate.limit(row);
  };
  note(ray, direction);
  for (size_t turn = 0; turn + 1 < table.rows + 2; ++turn) {
    size_t worst = table.rows;
    for (size_t j = 0; j < table.rows; ++j) {
      const double slack = 1e-9 * std::abs(evaluate.limit(j)) + 1;
      if (excess(ray, j) > slack && (worst == table.rows || excess(ray, j) > excess(ray, worst))) worst = j;
    }
    if (worst == table.rows) break;
    // Alone the broken row may be all that binds.
    Prices alone{};
    alone[worst] = 1;
    Ray other = along(evaluate, alone, table.rows, &work);
    if (!other.feasible) return {};
    note(other, alone);
    double from = 0, to = 1;
    bool met = false;
    for (int step = 0; step < 14 && !met; ++step) {
      const double part = step == 0 ? 1 : (from + to) / 2;
      Prices mixed{};
      for (size_t j = 0; j < table.rows; ++j) mixed[j] = (1 - part) * direction[j] + part * alone[j];
      Ray middle = part == 1 ? other : along(evaluate, mixed, table.rows, &work);
      if (!middle.feasible) return {};
      note(middle, mixed);
      // Which of the two rows does the mixture of solutions break?
      double old = -kInfinity;
      for (size_t j = 0; j < table.rows; ++j) {
        if (direction[j] > 0) old = std::max(old, excess(middle, j));
      }
      const double slack = 1e-9 * std::abs(evaluate.limit(worst)) + 1;
      if (old > slack) {
        to = part;
        if (step == 0) continue;
      } else if (excess(middle, worst) > slack) {
        from = part;
        if (step == 0) met = true;
      } else {
        met = true;
      }
      if (met || step == 13) {
        ray = std::move(middle);
        direction = mixed;
      }
    }
  }
  double highest = 0;
  double priced = 0;
  int used = 0;
  for (size_t j = 0; j < table.rows; ++j) {
    priced += best.prices[j] * std::abs(evaluate.limit(j));
    if (best.prices[j] > 0) ++used;
    if (best.prices[j] > highest) highest = best.prices[j], best.row = j;
  }
  if (highest == 0) best.row = first_row;
  best.several = used > 1;
  best.error = 1 + 1e-13 * (std::abs(best.time) + 4 * priced);
  return best;
}

}  // namespace osdp::search
