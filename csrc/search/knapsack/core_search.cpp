// Note [Three lists]
// Partial sums over groups, one item each, are kept in undominated lists. Two such lists, head and tail, grow
// over disjoint groups, the shorter one next, beginning with the groups whose alternatives have the largest
// reduced costs. A third list, the middle, starts with the most critical group (smallest reduced cost of an
// alternative) and takes the next most critical one whenever the additional scans cost less than extending
// head and tail. Head and tail are matched by one linear scan per sum of the middle: in an undominated list,
// the partner of most memory that still fits is the fastest. A list that would grow beyond its cap is cut
// into chunks, least reduced cost first, which are searched depth-first: memory is bounded, the search stays
// exact, and the first chunks find good plans.
#include "search/knapsack/items.hpp"

namespace osdp::search {
namespace {

class CoreSearch {
 public:
  CoreSearch(Context& context, int64_t threshold_ps, size_t cap, bool beam)
      : context_(context), threshold_(threshold_ps), cap_(cap), beam_(beam) {}
  bool run();

 private:
  void keep_cheapest(std::vector<Sum>& list);
  void extend(const std::vector<Sum>& from, const Items& items, std::vector<Sum>& to);
  void descend(const std::vector<Sum>& head, size_t next);
  using Lists = std::vector<std::vector<Sum>>;  // [j]: sums over the first j groups of an order
  void grow(Lists& lists, std::vector<size_t>& order, size_t group);
  bool middle_is_cheaper(size_t head, size_t tail, size_t next, size_t end) const;
  void match(const std::vector<Sum>& head);
  void accept(size_t head, size_t tail, size_t middle);

  // Plans worth finding: at most this much reduced cost above the relaxation.
  int64_t allowance() const {
    return std::min(threshold_ - context_.relaxed.lower_bound_ps, context_.allowance());
  }

  bool stopped() const { return context_.watch.stopped(); }

  Context& context_;
  const int64_t threshold_;  // searches for plans up to this time
  const size_t cap_;         // longest list that is not cut into chunks
  const bool beam_;
  bool cut_ = false;  // the beam dropped sums

  OpenGroups groups_;
  std::vector<size_t> head_order_, tail_order_, middle_order_;  // indices into groups_.open
  Lists tail_lists_, middle_lists_;
  std::vector<const std::vector<Sum>*> head_lists_;
  std::vector<Sum> scratch_;
  size_t held_ = 0;  // sums in all lists except the one being built
};

void CoreSearch::extend(const std::vector<Sum>& from, const Items& items, std::vector<Sum>& to) {
  to.clear();
  std::vector<size_t> starts;
  const int64_t allowed = allowance();
  for (size_t i = 0; i < items.sums.size(); ++i) {
    const Sum& item = items.sums[i];
    starts.push_back(to.size());
    for (size_t s = 0; s < from.size(); ++s) {
      if (from[s].reduced + item.reduced > allowed) continue;
      to.push_back({from[s].memory + item.memory, from[s].time + item.time, from[s].reduced + item.reduced,
                    static_cast<uint32_t>(s), static_cast<uint32_t>(i)});
    }
    if (to.size() == starts.back()) starts.pop_back();
    context_.watch.spent(static_cast<int64_t>(from.size()));
    context_.watch.too_large((held_ + 2 * to.capacity()) * sizeof(Sum));  // twice: sorting needs a copy
    if (stopped()) break;
  }
  context_.statistics.nodes += static_cast<int64_t>(to.size());
  merge_runs(to, std::move(starts), scratch_, by_memory);
  drop_dominated(to);
  context_.statistics.largest_list =
      std::max(context_.statistics.largest_list, static_cast<int64_t>(to.size()));
}

// For each sum of the middle, one pass finds the best partner of every head sum: heads by ascending memory,
// tails by descending memory.
void CoreSearch::match(const std::vector<Sum>& head) {
  const auto& tail = tail_lists_.back();
  const auto& middle = middle_lists_.back();
  for (size_t i = 0; i < middle.size(); ++i) {
    const int64_t room = context_.limit_bytes - groups_.base.memory - middle[i].memory;
    const int64_t worth =
        context_.best.time_ps - groups_.base.time - middle[i].time;  // smaller sums improve the incumbent
    int64_t least = worth;
    size_t t = tail.size(), head_found = 0, tail_found = 0;
    for (size_t h = 0; h < head.size() && t > 0; ++h) {
      while (t > 0 && head[h].memory + tail[t - 1].memory > room) --t;
      if (t == 0) break;
      const int64_t time = head[h].time + tail[t - 1].time;
      if (time < least) least = time, head_found = h, tail_found = t - 1;
    }
    if (least < worth) {
      context_.best.time_ps = groups_.base.time + middle[i].time + least;
      accept(head_found, tail_found, i);
    }
    if (context_.watch.spent(static_cast<int64_t>(head.size() + tail.size()))) return;
  }
}

// Walks the parents of the three sums and writes the incumbent's counts.
void CoreSearch::accept(size_t head, size_t tail, size_t middle) {
  Incumbent& best = context_.best;
  for (auto& counts : best.counts) std::fill(counts.begin(), counts.end(), 0);
  best.memory_bytes = groups_.base.memory;
  for (const Items& items : groups_.closed) take(items, 0, best.counts);
  const auto add = [&](const Items& items, size_t i) {
    best.memory_bytes += items.sums[i].memory;
    take(items, i, best.counts);
  };
  const auto walk = [&](const std::vector<size_t>& order, const auto& list_of, size_t lists, size_t at) {
    for (size_t j = lists - 1; j > 0; --j) {
      const Sum& s = list_of(j)[at];
      add(groups_.open[order[j - 1]], s.item);
      at = s.parent;
    }
  };
  const auto stored = [](const Lists& lists) { return [&](size_t j) -> const auto& { return lists[j]; }; };
  walk(middle_order_, stored(middle_lists_), middle_lists_.size(), middle);
  walk(head_order_, [&](size_t j) -> const auto& { return *head_lists_[j]; }, head_lists_.size(), head);
  walk(tail_order_, stored(tail_lists_), tail_lists_.size(), tail);
}

// Extends `head`, a list over the first `next` head groups, by the others, in chunks of at most cap_ sums.
void CoreSearch::descend(const std::vector<Sum>& head, size_t next) {
  if (context_.watch.spent()) return;
  head_lists_.push_back(&head);
  if (next == head_order_.size()) {
    match(head);
  } else {
    std::vector<Sum> list;
    extend(head, groups_.open[head_order_[next]], list);
    if (list.size() <= cap_) {
      held_ += list.size();
      if (!list.empty() && !stopped()) descend(list, next + 1);
      held_ -= list.size();
    } else {
      // Chunks by reduced cost; inside a chunk the order by memory is restored.
      std::sort(list.begin(), list.end(), [](const Sum& a, const Sum& b) {
        return a.reduced != b.reduced ? a.reduced < b.reduced : by_memory(a, b);
      });
      std::vector<Sum> chunk;
      const size_t more = list.size() + std::min(cap_, list.size());
      held_ += more;
      for (size_t begin = 0; begin < list.size() && !stopped(); begin += cap_) {
        if (list[begin].reduced > allowance()) break;
        if (beam_ && begin > 0) {
          cut_ = true;
          break;
        }
        chunk.assign(list.begin() + begin, list.begin() + std::min(begin + cap_, list.size()));
        std::sort(chunk.begin(), chunk.end(), by_memory);
        descend(chunk, next + 1);
      }
      held_ -= more;
    }
  }
  head_lists_.pop_back();
}

// The cap_ sums of least reduced cost.
void CoreSearch::keep_cheapest(std::vector<Sum>& list) {
  if (list.size() <= cap_) return;
  cut_ = true;
  std::nth_element(list.begin(), list.begin() + static_cast<ptrdiff_t>(cap_), list.end(),
                   [](const Sum& a, const Sum& b) {
                     return a.reduced != b.reduced ? a.reduced < b.reduced : by_memory(a, b);
                   });
  list.resize(cap_);
  std::sort(list.begin(), list.end(), by_memory);
}

void CoreSearch::grow(Lists& lists, std::vector<size_t>& order, size_t group) {
  order.push_back(group);
  std::vector<Sum> list;
  extend(lists.back(), groups_.open[group], list);
  if (beam_) keep_cheapest(list);
  list.shrink_to_fit();
  held_ += list.size();
  lists.push_back(std::move(list));
}

// Whether the last of the groups `next` to `end` - 1 should go to the middle: compares the additional scans
// of head and tail with the sums that head and tail would have to build and sort for these groups.
bool CoreSearch::middle_is_cheaper(size_t head, size_t tail, size_t next, size_t end) const {
  constexpr double kSort = 4;  // cost of building and sorting a sum, in steps of a scan
  const size_t shorter = std::min(head, tail);
  if (shorter < context_.tuning.long_list) return false;
  const auto items = [&](size_t group) { return static_cast<double>(groups_.open[group].sums.size()); };
  return static_cast<double>(middle_lists_.back().size()) * items(end - 1) *
             static_cast<double>(head + tail) <
         kSort * static_cast<double>(shorter) * items(next) * static_cast<double>(end - next);
}

// False when stopped or cut.
bool CoreSearch::run() {
  if (!open_groups(context_, allowance(), groups_)) return false;
  size_t next = 0, end = groups_.open.size();  // range of groups in no list yet
  Lists head_lists(1, std::vector<Sum>(1));
  tail_lists_ = middle_lists_ = head_lists;
  if (next < end) grow(middle_lists_, middle_order_, --end);
  while (next < end && !stopped()) {
    const size_t head = head_lists.back().size(), tail = tail_lists_.back().size();
    if (std::min(head, tail) > cap_) break;
    if (middle_is_cheaper(head, tail, next, end)) {
      grow(middle_lists_, middle_order_, --end);
      ++context_.statistics.matched;
    } else if (tail <= head) {
      grow(tail_lists_, tail_order_, next++);
    } else {
      grow(head_lists, head_order_, next++);
    }
  }
  if (stopped()) return false;
  const size_t built = head_order_.size();
  for (; next < end; ++next) head_order_.push_back(next);
  for (size_t j = 0; j < built; ++j) head_lists_.push_back(&head_lists[j]);
  descend(head_lists[built], built);
  return !stopped() && !cut_;
}

}  // namespace

bool search_core(Context& context, int64_t threshold_ps, size_t cap, bool beam) {
  context.statistics.rounds++;
  return CoreSearch(context, threshold_ps, cap, beam).run();
}

}  // namespace osdp::search
