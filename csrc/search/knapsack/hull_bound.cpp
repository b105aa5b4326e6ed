#include "search/knapsack/hull_bound.hpp"

#include <algorithm>
#include <cmath>

namespace osdp::search {
namespace {

// a.gain / a.memory > b.gain / b.memory
bool steeper(const Edge& a, const Edge& b) {
  return static_cast<int128>(a.gain_ps) * b.memory_bytes > static_cast<int128>(b.gain_ps) * a.memory_bytes;
}

Edge edge_between(const std::vector<Option>& options, int group, int from, int to) {
  return {group, from, to, options[to].memory_bytes - options[from].memory_bytes,
          options[from].time_ps - options[to].time_ps};
}

// Spends the remaining memory on moves to faster options, on the hull or not, largest gain first: this closes
// the last few percent.
void fill(const std::vector<Group>& groups, Relaxation& r, int64_t limit) {
  bool moved = true;
  for (int pass = 0; moved && pass < 32; ++pass) {
    moved = false;
    Edge best;
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto& options = groups[g].options;
      for (size_t from = 0; from < options.size(); ++from) {
        if (r.counts[g][from] == 0) continue;
        // Options are undominated, so the one of most memory that fits gains most time.
        for (size_t to = options.size() - 1; to > from; --to) {
          const Edge e =
              edge_between(options, static_cast<int>(g), static_cast<int>(from), static_cast<int>(to));
          if (e.memory_bytes > limit - r.memory_bytes) continue;
          if (e.gain_ps > best.gain_ps) best = e;
          break;
        }
      }
    }
    if (best.gain_ps > 0) {
      const int64_t copies =
          std::min(r.counts[best.group][best.from], (limit - r.memory_bytes) / best.memory_bytes);
      r.counts[best.group][best.from] -= copies;
      r.counts[best.group][best.to] += copies;
      r.memory_bytes += copies * best.memory_bytes;
      r.time_ps -= copies * best.gain_ps;
      moved = true;
    }
  }
}

}  // namespace

std::vector<int> lower_hull(const std::vector<Option>& options) {
  std::vector<int> hull;
  for (int i = 0; i < static_cast<int>(options.size()); ++i) {
    while (hull.size() >= 2) {
      const Edge last = edge_between(options, 0, hull[hull.size() - 2], hull.back());
      const Edge next = edge_between(options, 0, hull.back(), i);
      if (steeper(last, next)) break;  // strictly convex at hull.back()
      hull.pop_back();
    }
    hull.push_back(i);
  }
  return hull;
}

std::vector<Edge> hull_edges(const std::vector<Group>& groups) {
  std::vector<Edge> edges;
  std::vector<std::pair<double, uint32_t>> order;  // rounded slopes; near ties are compared exactly
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto hull = lower_hull(groups[g].options);
    for (size_t i = 1; i < hull.size(); ++i) {
      edges.push_back(edge_between(groups[g].options, static_cast<int>(g), hull[i - 1], hull[i]));
    }
  }
  for (const Edge& e : edges) {
    order.emplace_back(static_cast<double>(e.gain_ps) / static_cast<double>(e.memory_bytes), order.size());
  }
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    if (std::abs(a.first - b.first) > 1e-12 * a.first) return a.first > b.first;
    const Edge &x = edges[a.second], &y = edges[b.second];
    return steeper(x, y) || (!steeper(y, x) && a.second < b.second);
  });
  std::vector<Edge> sorted;
  sorted.reserve(edges.size());
  for (const auto& [slope, i] : order) sorted.push_back(edges[i]);
  return sorted;
}

Relaxation relax(const std::vector<Group>& groups, const std::vector<Edge>& edges, int64_t limit) {
  Relaxation r;
  r.counts.resize(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    r.counts[g].assign(groups[g].options.size(), 0);
    r.counts[g][0] = groups[g].count;
    r.memory_bytes += groups[g].count * groups[g].options[0].memory_bytes;
    r.time_ps += groups[g].count * groups[g].options[0].time_ps;
  }
  r.smallest_limit_bytes = r.memory_bytes;
  r.feasible = r.memory_bytes <= limit;
  if (!r.feasible) return r;
  bool broken = false;
  for (const Edge& e : edges) {
    // A group's edges come in hull order (convexity), so before the break all its operators are at e.from.
    const int64_t copies = std::min(r.counts[e.group][e.from], (limit - r.memory_bytes) / e.memory_bytes);
    if (!broken && copies < groups[e.group].count) {
      broken = true;
      r.multiplier = {e.gain_ps, e.memory_bytes};
      r.lower_bound_ps = r.time_ps - static_cast<int64_t>(static_cast<int128>(limit - r.memory_bytes) *
                                                          e.gain_ps / e.memory_bytes);
    }
    r.counts[e.group][e.from] -= copies;
    r.counts[e.group][e.to] += copies;
    r.memory_bytes += copies * e.memory_bytes;
    r.time_ps -= copies * e.gain_ps;
  }
  if (!broken) {
    r.lower_bound_ps = r.time_ps;  // every operator has its fastest option
  } else {
    fill(groups, r, limit);
  }
  return r;
}

Multiplier price_of_memory(const ProblemView& problem) {
  const std::vector<Group> groups = make_groups(problem);
  return relax(groups, hull_edges(groups), problem.limit_bytes).multiplier;
}

}  // namespace osdp::search
