#include "search/labels/block_columns.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace osdp::search {
namespace {

// The least cost of one way, and the reduced costs of its options by slot.
struct WayCost {
  struct Extra {
    double cost;  // relative to the slot's cheapest option
    const SlotOption* option;
  };
  double all = 0;                         // least cost of the whole way
  std::vector<std::vector<Extra>> extra;  // by slot, cheapest first
};

WayCost cost_of(const ChainResources& chain, const ChainResources::Segment& segment, const Way& way,
                const PhasePrices& prices) {
  WayCost cost;
  const bool again = way.way != Recompute::None;
  cost.all = static_cast<double>(way.time);
  cost.all += prices.from(0) * static_cast<double>(way.in_flight);
  cost.all += prices.from(segment.first) * static_cast<double>(way.input);
  for (size_t p = 0; p < way.slots.size(); ++p) {
    const size_t i = segment.first + p;
    const double kept = again ? prices.of(i, segment.end) : prices.from(i);
    cost.all += kept * static_cast<double>(chain.saved(segment.cls, p)) +
                prices.of(i, i + 1) * static_cast<double>(chain.work(segment.cls, p));
    auto& extra = cost.extra.emplace_back();
    double least = std::numeric_limits<double>::infinity();
    for (const SlotOption& o : way.slots[p]) {
      extra.push_back({static_cast<double>(o.time) + memory_cost(o, prices, i, segment.end), &o});
      least = std::min(least, extra.back().cost);
    }
    for (WayCost::Extra& e : extra) e.cost -= least;
    if (!extra.empty()) cost.all += least;
  }
  return cost;
}

// A partial column: choices for the first slots of a segment.
struct Part : Stretch {
  int64_t now = 0;              // `before`, and what is held only inside
  int64_t near = -kLargestSum;  // the largest phase that what the next operator with parameters leaves is in
  double extra = 0;
  uint32_t parent = 0;
  int candidate = -1;
  bool no_worse(const Part& o) const { return Stretch::no_worse(o) && now <= o.now && near <= o.near; }
};

// How many of the undominated ones each is compared with.
constexpr size_t kLook = 8;

bool add_way(const ChainResources& chain, const ChainResources::Segment& segment, const Way& way,
             WayCost cost, double allowance, size_t most, Stopwatch& watch, BlockColumns& columns) {
  static constexpr SlotOption kWithout;  // no parameters
  const bool again = way.way != Recompute::None;
  std::vector<std::vector<Part>> parts(1);
  Part& start = parts[0].emplace_back();
  start.time = way.time;
  start.before = start.now = way.input + way.in_flight;
  start.after = way.in_flight;
  start.peak = -kLargestSum;
  std::vector<bool> near(way.slots.size());
  for (size_t p = 0; p < way.slots.size(); ++p) {
    const auto left = static_cast<size_t>(way.slots[p].empty() ? 0 : way.slots[p][0].left_phases);
    std::fill(near.begin() + static_cast<std::ptrdiff_t>(p - left),
              near.begin() + static_cast<std::ptrdiff_t>(p), true);
  }
  for (size_t p = 0; p < way.slots.size(); ++p) {
    const int64_t saved = chain.saved(segment.cls, p), work = chain.work(segment.cls, p);
    auto& extras = cost.extra[p];
    if (extras.empty()) extras.push_back({0, &kWithout});
    std::sort(extras.begin(), extras.end(),
              [](const WayCost::Extra& a, const WayCost::Extra& b) { return a.cost < b.cost; });
    std::vector<Part> next;
    next.reserve(parts[p].size() * std::min<size_t>(extras.size(), 4));
    for (size_t n = 0; n < parts[p].size(); ++n) {
      const Part& x = parts[p][n];
      for (const auto& [extra, o] : extras) {
        if (x.extra + extra > allowance) break;
        const int64_t now = x.now + o->before + saved + o->held, phase = now + o->own + work;
        const int64_t left = x.near + o->after + o->left;
        next.push_back({{x.time + o->time, x.before + o->before + (again ? 0 : saved), x.after + o->after,
                         std::max({x.peak + o->after, left, phase})},
                        now,
                        !near[p]           ? -kLargestSum
                        : o->candidate < 0 ? std::max(x.near, phase)
                                           : phase - o->late,
                        x.extra + extra,
                        static_cast<uint32_t>(n),
                        o->candidate});
      }
      if (next.size() > 16 * most || watch.spent(static_cast<int64_t>(5 * extras.size()))) return false;
    }
    if (extras.size() > 1) {
      drop_dominated_stretches(next, kLook);
      watch.spent(static_cast<int64_t>(kLook * next.size()));
    }
    if (next.size() > most) return false;
    parts.push_back(std::move(next));
  }
  for (const Part& last : parts.back()) {
    columns.list.push_back({{last.time, last.before, last.after, last.peak},
                            way.way,
                            static_cast<uint32_t>(columns.choices.size() / columns.slots)});
    columns.choices.resize(columns.choices.size() + columns.slots);
    const Part* part = &last;
    for (size_t p = columns.slots; p-- > 0;) {
      *(columns.choices.end() - static_cast<std::ptrdiff_t>(columns.slots - p)) = part->candidate;
      part = &parts[p][part->parent];
    }
  }
  return true;
}

}  // namespace

double least_cost(const ChainResources& chain, const ChainResources::Segment& segment,
                  const PhasePrices& prices) {
  double least = std::numeric_limits<double>::infinity();
  for (const Way& way : chain.ways(segment.cls)) {
    least = std::min(least, cost_of(chain, segment, way, prices).all);
  }
  return least;
}

bool list_block_columns(const ChainResources& chain, const ChainResources::Segment& segment,
                        const PhasePrices& prices, double allowance, size_t most, Stopwatch& watch,
                        BlockColumns& columns) {
  std::vector<BlockColumn>& list = columns.list;
  columns.slots = segment.end - segment.first;
  std::vector<WayCost> costs;
  double least = std::numeric_limits<double>::infinity();
  for (const Way& way : chain.ways(segment.cls)) {
    costs.push_back(cost_of(chain, segment, way, prices));
    least = std::min(least, costs.back().all);
  }
  for (size_t w = 0; w < costs.size(); ++w) {
    const double left = allowance - (costs[w].all - least);
    if (left < 0) continue;
    if (!add_way(chain, segment, chain.ways(segment.cls)[w], std::move(costs[w]), left, most, watch, columns))
      return false;
  }
  drop_dominated_stretches(list, kLook);
  return !watch.spent(static_cast<int64_t>(kLook * list.size()));
}

}  // namespace osdp::search
