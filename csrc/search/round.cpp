// Note [Two lists]
// Partial sums over groups, one item each, are kept in lists without the dominated ones. Two such lists are
// grown over disjoint groups, the most decided ones first, always the shorter one next; the most critical
// group is in neither. Matching the two is one linear scan per item of that group (the most memory that still
// fits is the least time). A list that would grow beyond its cap is cut into chunks, least reduced cost
// first, which are searched depth-first: memory is bounded, the search stays exact, and the first chunks find
// good plans.
#include "search/round.hpp"

#include "search/items.hpp"

namespace osdp::search {
namespace {

class Round {
 public:
  Round(Context& context, int64_t threshold_ps, size_t cap, bool beam, int64_t most_nodes)
      : context_(context),
        threshold_(threshold_ps),
        cap_(cap),
        beam_(beam),
        last_node_(most_nodes == 0 ? kLargestSum : context.statistics.nodes + most_nodes) {}
  bool run();

 private:
  void keep_cheapest(std::vector<Sum>& list);
  void extend(const std::vector<Sum>& from, const Items& items, std::vector<Sum>& to);
  void descend(const std::vector<Sum>& head, size_t next);
  void match(const std::vector<Sum>& head);
  void accept(size_t head, size_t tail, size_t last);

  // Plans worth finding: at most this much reduced cost above the relaxation.
  int64_t allowance() const {
    return std::min(threshold_ - context_.relaxed.lower_bound_ps, context_.allowance());
  }

  bool stopped() const { return context_.watch.stopped() || context_.statistics.nodes > last_node_; }

  Context& context_;
  const int64_t threshold_;  // plans up to this time are looked for
  const size_t cap_;         // longest list that is not cut into chunks
  const bool beam_;
  const int64_t last_node_;  // beyond this the round is given up

  OpenGroups groups_;
  std::vector<size_t> head_order_, tail_order_;  // indices into groups_.open
  const Items* last_ = nullptr;                  // the most critical group: in neither list
  std::vector<std::vector<Sum>> tail_lists_;     // tail_lists_[j]: sums over the first j tail groups
  std::vector<const std::vector<Sum>*> head_lists_;
  std::vector<Sum> scratch_;
  size_t held_ = 0;  // sums in all lists but the one that is being made
};

void Round::extend(const std::vector<Sum>& from, const Items& items, std::vector<Sum>& to) {
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
    context_.watch.too_large((held_ + 2 * to.capacity()) * sizeof(Sum));  // and as much to sort it
    if (stopped()) break;
  }
  context_.statistics.nodes += static_cast<int64_t>(to.size());
  merge_runs(to, std::move(starts), scratch_, by_memory);
  drop_dominated(to);
  context_.statistics.largest_list =
      std::max(context_.statistics.largest_list, static_cast<int64_t>(to.size()));
}

// For each item of the last group, the best partner of each head sum in one pass: heads by rising memory,
// tails by falling memory.
void Round::match(const std::vector<Sum>& head) {
  const auto& tail = tail_lists_.back();
  for (size_t i = 0; i < last_->sums.size(); ++i) {
    const Sum& item = last_->sums[i];
    const int64_t room = context_.limit_bytes - groups_.base.memory - item.memory;
    const int64_t worth =
        context_.best.time_ps - groups_.base.time - item.time;  // sums below this are better plans
    int64_t least = worth;
    size_t t = tail.size(), head_found = 0, tail_found = 0;
    for (size_t h = 0; h < head.size() && t > 0; ++h) {
      while (t > 0 && head[h].memory + tail[t - 1].memory > room) --t;
      if (t == 0) break;
      const int64_t time = head[h].time + tail[t - 1].time;
      if (time < least) least = time, head_found = h, tail_found = t - 1;
    }
    if (least < worth) {
      context_.best.time_ps = groups_.base.time + item.time + least;
      accept(head_found, tail_found, i);
    }
    if (context_.watch.spent(static_cast<int64_t>(head.size() + tail.size()))) return;
  }
}

// Walks the parents of both halves and writes the incumbent's counts.
void Round::accept(size_t head, size_t tail, size_t last) {
  Incumbent& best = context_.best;
  for (auto& counts : best.counts) std::fill(counts.begin(), counts.end(), 0);
  best.memory_bytes = groups_.base.memory;
  for (const Items& items : groups_.closed) take(items, 0, best.counts);
  const auto add = [&](const Items& items, size_t i) {
    best.memory_bytes += items.sums[i].memory;
    take(items, i, best.counts);
  };
  add(*last_, last);
  for (size_t j = head_lists_.size() - 1; j > 0; --j) {
    const Sum& s = (*head_lists_[j])[head];
    add(groups_.open[head_order_[j - 1]], s.item);
    head = s.parent;
  }
  for (size_t j = tail_lists_.size() - 1; j > 0; --j) {
    const Sum& s = tail_lists_[j][tail];
    add(groups_.open[tail_order_[j - 1]], s.item);
    tail = s.parent;
  }
}

// Extends `head`, a list over the first `next` head groups, by the others, in chunks of at most cap_ sums.
void Round::descend(const std::vector<Sum>& head, size_t next) {
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
        if (beam_ && begin > 0) break;
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
void Round::keep_cheapest(std::vector<Sum>& list) {
  if (list.size() <= cap_) return;
  std::nth_element(list.begin(), list.begin() + static_cast<ptrdiff_t>(cap_), list.end(),
                   [](const Sum& a, const Sum& b) {
                     return a.reduced != b.reduced ? a.reduced < b.reduced : by_memory(a, b);
                   });
  list.resize(cap_);
  std::sort(list.begin(), list.end(), by_memory);
}

// False when stopped.
bool Round::run() {
  if (!open_groups(context_, allowance(), groups_)) return false;
  size_t lists = groups_.open.size();
  Items nothing;  // where no group is open
  nothing.sums.resize(1);
  nothing.counts.resize(1);
  last_ = lists == 0 ? &nothing : &groups_.open[--lists];
  tail_lists_.emplace_back(1);
  std::vector<std::vector<Sum>> head_storage(1, std::vector<Sum>(1));
  size_t next = 0;
  while (next < lists && std::min(head_storage.back().size(), tail_lists_.back().size()) <= cap_) {
    const bool to_tail = tail_lists_.back().size() <= head_storage.back().size();
    auto& grown = to_tail ? tail_lists_ : head_storage;
    (to_tail ? tail_order_ : head_order_).push_back(next);
    std::vector<Sum> list;
    extend(grown.back(), groups_.open[next], list);
    if (beam_) keep_cheapest(list);
    list.shrink_to_fit();
    held_ += list.size();
    grown.push_back(std::move(list));
    ++next;
    if (stopped()) return false;
  }
  const size_t built = head_order_.size();
  for (; next < lists; ++next) head_order_.push_back(next);
  for (size_t j = 0; j < built; ++j) head_lists_.push_back(&head_storage[j]);
  descend(head_storage[built], built);
  return !stopped();
}

}  // namespace

bool search_round(Context& context, int64_t threshold_ps, size_t cap, bool beam, int64_t most_nodes) {
  context.statistics.rounds++;
  return Round(context, threshold_ps, cap, beam, most_nodes).run();
}

}  // namespace osdp::search
