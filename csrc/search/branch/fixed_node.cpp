#include "search/branch/fixed_node.hpp"

#include <algorithm>
#include <numeric>

#include "search/knapsack/operator_groups.hpp"
#include "search/problem/dominance.hpp"

namespace osdp::search {
namespace {

// The operators of one slot of a group, under one recomputation.
struct Alike {
  size_t group, way, slot;
  int count;
  std::vector<int> options;  // indices into ColumnPool::Options
  // By row: 0, or the least bytes of an option if that is negative (Note [Gradients that wait]). The exact
  // search counts from there.
  std::vector<int64_t> least;
};

class FixedNodeSolver {
 public:
  FixedNodeSolver(const EquivalenceClasses& classes, const ColumnPool& pool, const Request& request,
                  const Region& region)
      : classes_(classes), pool_(pool) {
    int128 fixed = static_cast<int128>(region.hi.accumulation) * classes.compute_ps(region.hi.size);
    std::vector<int128> left(pool.rows,
                             static_cast<int128>(request.limit_bytes) - classes.held(region.hi.size));
    for (size_t g = 0; g < pool.groups.size(); ++g) {
      const auto& entry = pool.entries[g];
      for (size_t w = 0; w < entry.ways.size(); ++w) {
        const int count = region.box.lo[entry.first_way + w];
        if (count == 0) continue;
        const auto& way = entry.ways[w];
        fixed += static_cast<int128>(count) * region.hi.accumulation * way.recompute_ps(region.hi.size);
        for (size_t j = 0; j < pool.rows; ++j) {
          left[j] -= static_cast<int128>(count) * way.kept[j](region.hi.size);
        }
        for (size_t p = 0; p < way.slots.size(); ++p) {
          Alike a{g, w, p, count, std::vector<int>(way.slots[p].time.size()), {}};
          std::iota(a.options.begin(), a.options.end(), 0);
          for (size_t j = 0; j < pool.rows; ++j) {
            const auto first = way.slots[p].bytes.begin() + static_cast<std::ptrdiff_t>(j * a.options.size());
            const auto end = first + static_cast<std::ptrdiff_t>(a.options.size());
            a.least.push_back(
                first == end ? 0 : std::min<int64_t>(0, static_cast<int64_t>(*std::min_element(first, end))));
            left[j] -= static_cast<int128>(count) * a.least.back();
          }
          drop_dominated(way.slots[p], a.options);
          if (!a.options.empty()) alike_.push_back(std::move(a));
        }
      }
    }
    if (fixed > kLargestSum) throw InvalidProblem("the time of one step overflows 2^61");
    fixed_ps_ = static_cast<int64_t>(fixed);
    for (int128 v : left) {
      fits_ &= v >= 0;
      left_.push_back(static_cast<int64_t>(v));
    }
  }

  bool fits() const { return fits_; }
  int64_t fixed_ps() const { return fixed_ps_; }

  // Solves with a single row, by the exact search of knapsack/solve.hpp, into counts_.
  Solution one(size_t row, const Budget& budget) {
    Problem problem;
    problem.limit_bytes = left_[row];
    std::vector<std::vector<int>> kept;  // by Alike
    for (const Alike& a : alike_) {
      std::vector<Option> options;
      for (int k : a.options) options.push_back({time(a, k), bytes(a, k, row)});
      kept.push_back(undominated(options));
      std::vector<Option> few;
      for (int k : kept.back()) few.push_back(options[k]);
      for (int n = 0; n < a.count; ++n) problem.operators.push_back(few);
    }
    Solution s;
    if (problem.operators.empty()) {
      s.status = Status::Optimal;
      return s;
    }
    s = solve_exact(problem, budget);
    if (s.choices.empty()) return s;
    counts_.clear();
    size_t next = 0;
    for (size_t n = 0; n < alike_.size(); ++n) {
      auto& counts = counts_.emplace_back(alike_[n].options.size(), 0);
      for (int m = 0; m < alike_[n].count; ++m) ++counts[kept[n][s.choices[next++]]];
    }
    return s;
  }

  // Note [Arrangement]
  // Assigns choices to equal instances. Phases are smaller if instances whose memory grows most in backward
  // come first in the model. So recomputed blocks come first, and among equal operators those with replicated
  // gradients; those that stay gathered come last. This is a heuristic: the phases of the result are checked,
  // and a row is added if one is too large.
  Decision decide(const Region& region, const Model& model) const {
    Decision d;
    d.choices.assign(model.operators.size(), -1);
    d.ways.assign(model.blocks.size(), Recompute::None);
    std::vector<std::vector<int>> first(pool_.groups.size());  // index of the first instance of each way
    for (size_t g = 0; g < pool_.groups.size(); ++g) {
      const auto& entry = pool_.entries[g];
      const EquivalenceClass& cls = classes_.classes[pool_.groups[g].cls];
      first[g].assign(entry.ways.size(), 0);
      int at = 0;
      for (Recompute r : {Recompute::Hold, Recompute::Regather, Recompute::None}) {
        for (size_t w = 0; w < entry.ways.size(); ++w) {
          if (entry.ways[w].way != r) continue;
          first[g][w] = at;
          const int count = region.box.lo[entry.first_way + w];
          for (int n = at; cls.block && n < at + count; ++n) {
            d.ways[cls.blocks[pool_.groups[g].instances[n]]] = r;
          }
          at += count;
        }
      }
    }
    for (size_t n = 0; n < alike_.size(); ++n) {
      const Alike& a = alike_[n];
      const SymmetryClass& group = pool_.groups[a.group];
      const EquivalenceClass& cls = classes_.classes[group.cls];
      const auto& way = pool_.entries[a.group].ways[a.way];
      const auto& all = cls.slots[a.slot].candidates[static_cast<int>(way.way)];
      std::vector<std::pair<int, int64_t>> taken;  // candidate, count
      for (size_t k = 0; k < counts_[n].size(); ++k) {
        if (counts_[n][k] > 0) taken.push_back({a.options[k], counts_[n][k]});
      }
      std::stable_sort(taken.begin(), taken.end(), [&](const auto& x, const auto& y) {
        const Candidate &p = all[x.first], &q = all[y.first];
        return p.gradient_bytes - p.gathered_bytes > q.gradient_bytes - q.gathered_bytes;
      });
      int at = first[a.group][a.way];
      for (const auto& [candidate, count] : taken) {
        for (int64_t m = 0; m < count; ++m) {
          d.choices[cls.instances[group.instances[at++]][a.slot]] = candidate;
        }
      }
    }
    return d;
  }

 private:
  const ColumnPool::Options& options(const Alike& a) const {
    return pool_.entries[a.group].ways[a.way].slots[a.slot];
  }
  int64_t time(const Alike& a, int k) const { return static_cast<int64_t>(options(a).time[k]); }
  int64_t bytes(const Alike& a, int k, size_t row) const {
    const auto& o = options(a);
    return static_cast<int64_t>(o.bytes[row * o.time.size() + k]) - a.least[row];
  }

  void drop_dominated(const ColumnPool::Options& o, std::vector<int>& options) const {
    const size_t n = o.time.size();
    keep_undominated(options, [&](int a, int b) {
      bool no_worse = o.time[a] <= o.time[b];
      for (size_t j = 0; j < pool_.rows; ++j) no_worse &= o.bytes[j * n + a] <= o.bytes[j * n + b];
      return no_worse;
    });
  }

  const EquivalenceClasses& classes_;
  const ColumnPool& pool_;
  std::vector<Alike> alike_;
  std::vector<std::vector<int64_t>> counts_;  // [Alike][its options]
  std::vector<int64_t> left_;                 // by row
  int64_t fixed_ps_ = 0;
  bool fits_ = true;
};

}  // namespace

FixedNode solve_fixed_node(const EquivalenceClasses& classes, const ColumnPool& pool, const Request& request,
                           const Region& region, const Bounded& bounded, const Model& model,
                           int64_t cutoff_ps, const Budget& budget) {
  FixedNode leaf;
  FixedNodeSolver solver(classes, pool, request, region);
  if (!solver.fits()) return leaf;
  const Solution s = solver.one(bounded.row, budget);
  leaf.nodes = s.statistics.nodes;
  if (s.status == Status::Infeasible) return leaf;
  leaf.lower_bound_ps = solver.fixed_ps() + s.lower_bound_ps;
  if (leaf.lower_bound_ps >= cutoff_ps) return leaf;
  leaf.status = s.status;
  leaf.time_ps = solver.fixed_ps() + s.time_ps;
  leaf.decision = solver.decide(region, model);
  return leaf;
}

}  // namespace osdp::search
