#include "search/bounds/column_pool.hpp"

#include <algorithm>
#include <numeric>

#include "search/problem/dominance.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

struct Line {
  int candidate;
  int64_t transient, time;
  std::array<int64_t, kMostRows> bytes;
};

// Whether option `a` shards some but not all slices, more than one, and is no better than the mixture of
// sharding one and sharding all.
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
  const int128 n = c.granularity - 1, k = c.sharded_slices - 1;
  const Line &x = lines[first], &y = lines[last], &z = lines[a];
  if (n * z.time < (n - k) * x.time + k * y.time - 2 * n * accumulation) return false;
  for (size_t j = 0; j < rows; ++j) {
    if (n * z.bytes[j] < (n - k) * x.bytes[j] + k * y.bytes[j]) return false;
  }
  return true;
}

// Whether `Hold` is never worse than `Regather` in these rows: none of them is a phase inside such a block,
// so the held parameters count in none. (If a plan then violates such a phase, it becomes a row.)
bool hold_is_free(const SymmetryClass& symmetry_class) {
  return std::none_of(symmetry_class.relation.begin(), symmetry_class.relation.end(),
                      [](int r) { return r >= 0; });
}

}  // namespace

ColumnPool make_column_pool(const Kinds& kinds, const std::vector<int>& rows, int64_t accumulation) {
  ColumnPool pool;
  pool.rows = rows.size();
  pool.groups = make_symmetry_classes(kinds, rows);
  for (const SymmetryClass& group : pool.groups) {
    const Kind& kind = kinds.kinds[group.kind];
    auto& entry = pool.entries.emplace_back();
    entry.count = static_cast<int>(group.instances.size());
    entry.first_way = pool.ways;
    const auto allowed = [&](Recompute r) {
      return std::find(kind.ways.begin(), kind.ways.end(), r) != kind.ways.end();
    };
    for (Recompute r : kind.ways) {
      if (r == Recompute::Regather && allowed(Recompute::Hold) && hold_is_free(group)) continue;
      ++pool.ways;
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
        std::vector<int> undominated(lines.size());
        std::iota(undominated.begin(), undominated.end(), 0);
        keep_undominated(undominated, [&](int a, int b) {
          const Line &x = lines[a], &y = lines[b];
          bool no_worse = x.time <= y.time && x.transient <= y.transient;
          for (size_t j = 0; j < rows.size(); ++j) no_worse &= x.bytes[j] <= y.bytes[j];
          return no_worse;
        });
        for (int a : undominated) {
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
  return pool;
}

Box everything(const ColumnPool& pool) {
  Box box;
  for (const auto& entry : pool.entries) {
    for (size_t w = 0; w < entry.ways.size(); ++w) {
      box.lo.push_back(entry.ways.size() == 1 ? entry.count : 0);
      box.hi.push_back(entry.count);
    }
  }
  return box;
}

}  // namespace osdp::search
