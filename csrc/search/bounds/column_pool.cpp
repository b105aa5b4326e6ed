#include "search/bounds/column_pool.hpp"

#include <algorithm>
#include <numeric>

#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

// Whether `Hold` is never worse than `Regather` in these rows: none of them is a phase inside such a block,
// so the held parameters count in none. (If a plan then violates such a phase, it becomes a row.)
bool hold_is_free(const SymmetryClass& symmetry_class) {
  return std::none_of(symmetry_class.relation.begin(), symmetry_class.relation.end(),
                      [](int r) { return r >= 0; });
}

}  // namespace

ColumnPool make_column_pool(const EquivalenceClasses& classes, const std::vector<int>& rows,
                            int64_t accumulation) {
  ColumnPool pool;
  pool.rows = rows.size();
  pool.groups = make_symmetry_classes(classes, rows);
  for (const SymmetryClass& group : pool.groups) {
    const EquivalenceClass& cls = classes.classes[group.cls];
    auto& entry = pool.entries.emplace_back();
    entry.count = static_cast<int>(group.instances.size());
    entry.first_way = pool.ways;
    const auto allowed = [&](Recompute r) {
      return std::find(cls.ways.begin(), cls.ways.end(), r) != cls.ways.end();
    };
    for (Recompute r : cls.ways) {
      if (r == Recompute::Regather && allowed(Recompute::Hold) && hold_is_free(group)) continue;
      ++pool.ways;
      auto& way = entry.ways.emplace_back();
      way.way = r;
      if (r != Recompute::None) way.recompute_ps = cls.recompute_ps;
      for (int relation : group.relation) way.kept.push_back(kept_in(relation, cls, r));
      for (size_t p = 0; p < cls.slots.size(); ++p) {
        const auto& all = cls.slots[p].candidates[static_cast<int>(r)];
        auto& options = way.slots.emplace_back();
        for (const Candidate& c : all) {
          options.time.push_back(static_cast<double>(accumulation * c.communication_ps + c.optimizer_ps));
        }
        for (int relation : group.relation) {
          for (const Candidate& c : all) {
            options.bytes.push_back(
                static_cast<double>(held_in(relation, static_cast<int>(p), r, c, accumulation > 1)));
          }
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

void tighten(const ColumnPool& pool, Box& box) {
  for (const auto& entry : pool.entries) {
    const size_t begin = entry.first_way, end = begin + entry.ways.size();
    const auto sum = [&](const std::vector<int>& bounds) {
      return std::accumulate(bounds.begin() + begin, bounds.begin() + end, 0);
    };
    for (size_t w = begin; w < end; ++w) {
      const int least = entry.count - (sum(box.hi) - box.hi[w]),
                most = entry.count - (sum(box.lo) - box.lo[w]);
      box.lo[w] = std::max(box.lo[w], least), box.hi[w] = std::min(box.hi[w], most);
    }
  }
}

}  // namespace osdp::search
