#include "search/level_basis.hpp"

#include <cmath>

#include "search/lattice.hpp"

namespace osdp::search::levels {
namespace {

size_t cheapest_item(const Items& items) {
  size_t first = 0;
  for (size_t i = 1; i < items.sums.size(); ++i) {
    if (items.sums[i].reduced < items.sums[first].reduced) first = i;
  }
  return first;
}

}  // namespace

// Gauss's reduction of the lattice's basis, under the norm time^2 + (lambda memory)^2: any basis is valid, so
// rounding only costs quality.
bool choose_basis(Context& c, const OpenGroups& groups, Basis& basis) {
  Vector &start = basis.start, &u = basis.u, &v = basis.v;
  start = {groups.base.time, groups.base.memory};
  for (const Items& items : groups.open) {
    const Sum& first = items.sums[cheapest_item(items)];
    start.time += first.time, start.memory += first.memory;
  }
  Lattice lattice;
  for (const Items& items : groups.open) {
    for (const Sum& s : items.sums)
      extend(lattice, items.sums[0].time - s.time, items.sums[0].memory - s.memory);
  }
  if (lattice.d == 0 || lattice.a == 0) return false;
  lattice.base_time_ps = static_cast<int64_t>(start.time);
  lattice.base_memory_bytes = static_cast<int64_t>(start.memory);
  // Better plans lie on this lattice, so none of them is faster than its bound.
  c.raise_bound(std::min(
      c.best.time_ps, lattice_bound(lattice, c.limit_bytes, c.relaxed.lower_bound_ps, c.relaxed.multiplier)));
  const long double price = static_cast<long double>(c.relaxed.multiplier.numerator) /
                            static_cast<long double>(c.relaxed.multiplier.denominator);
  const auto dot = [&](const Vector& a, const Vector& b) {
    return static_cast<long double>(a.time) * static_cast<long double>(b.time) +
           price * static_cast<long double>(a.memory) * price * static_cast<long double>(b.memory);
  };
  u = {0, lattice.d}, v = {lattice.a, lattice.b};
  for (int step = 0; step < 200; ++step) {
    if (dot(v, v) < dot(u, u)) std::swap(u, v);
    const auto times = static_cast<int128>(std::round(dot(u, v) / dot(u, u)));
    if (times == 0) break;
    v = {v.time - times * u.time, v.memory - times * u.memory};
  }
  for (int128 x : {u.time, u.memory, v.time, v.memory}) {
    if (x > kFar || x < -kFar) return false;
  }
  // More positions shall be more memory, or as much memory and less time.
  if (u.memory < 0 || (u.memory == 0 && u.time > 0)) u = {-u.time, -u.memory};
  basis.det = v.time * u.memory - v.memory * u.time;
  return basis.det != 0;
}

bool place_items(const OpenGroups& groups, const Basis& basis, std::vector<Placed>& all) {
  const auto& [start, u, v, det] = basis;
  for (size_t g = groups.open.size(); g-- > 0;) {
    const auto& sums = groups.open[g].sums;
    const size_t first = cheapest_item(groups.open[g]);
    Placed& placed = all.emplace_back();
    placed.group = g;
    for (size_t i = 0; i < sums.size(); ++i) {
      const int128 time = sums[i].time - sums[first].time, memory = sums[i].memory - sums[first].memory;
      const int128 level = (time * u.memory - memory * u.time) / det;
      const int128 position = (v.time * memory - v.memory * time) / det;
      if (level > kMostLevels || level < -kMostLevels || position > kFar || position < -kFar) return false;
      placed.points.push_back({static_cast<int64_t>(position), sums[i].reduced, static_cast<int32_t>(level),
                               0, 0, static_cast<uint32_t>(i)});
    }
    std::stable_sort(placed.points.begin(), placed.points.end(),
                     [](const Point& a, const Point& b) { return a.reduced < b.reduced; });
  }
  return true;
}

}  // namespace osdp::search::levels
