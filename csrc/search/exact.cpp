// Note [Exact search]
// 1. Equal operators become one group with a multiplicity, dominated options go (groups.hpp).
// 2. The Lagrangian relaxation gives a lower bound, the price of memory lambda and a feasible plan
// (bound.hpp); the
//    lattice of costs may raise the bound (lattice.hpp). Often they meet, and that is all.
// 3. With lambda, an option's *reduced cost* is what it adds to the bound by being chosen: t + lambda w, less
// the
//    group's least. A plan's time is at least bound + the sum of its reduced costs, so a plan that may be
//    better than the incumbent has little of it: most options of most groups are out (fixing).
// 4. What is left of a group becomes *items*: how many of its operators take which option, as one (memory,
// time,
//    reduced cost) each. Partial sums over groups, one item each, are kept in lists without the dominated
//    ones. Two such lists are grown over disjoint groups, the critical ones first, always the shorter one
//    next; matching them is one linear scan (the most memory that still fits is the least time).
// 5. A list that would grow beyond its cap is cut into chunks, least reduced cost first, which are searched
// depth-first.
//    So memory is bounded and the search stays exact; the first chunks are a beam and find good plans.
// 6. Rounds: first only plans up to a small distance above the bound, then wider. A round that ends proves
// the bound up
//    to its distance, so the work is about what the true gap needs, however bad the first incumbent was.
#include <algorithm>
#include <map>

#include "search/bound.hpp"
#include "search/branch.hpp"
#include "search/lattice.hpp"

namespace osdp::search {
namespace {

// One way for a group's operators to choose, or a partial sum of such over several groups. `reduced` is
// rounded down per option, so sums of it never overstate.
struct Sum {
  int64_t memory = 0, time = 0, reduced = 0;
  uint32_t parent = 0;  // index into the list it was made from
  uint32_t item = 0;    // index of the item that was added
};

bool by_memory(const Sum& a, const Sum& b) {
  return a.memory != b.memory ? a.memory < b.memory : a.time < b.time;
}

// Keeps what nothing dominates; `list` is sorted by_memory.
void drop_dominated(std::vector<Sum>& list) {
  size_t kept = 0;
  for (const Sum& s : list) {
    if (kept == 0 || s.time < list[kept - 1].time) list[kept++] = s;
  }
  list.resize(kept);
}

// Merges sorted runs that start at `starts` into one sorted list, pairwise.
void merge_runs(std::vector<Sum>& list, std::vector<size_t> starts, std::vector<Sum>& scratch) {
  while (starts.size() > 1) {
    scratch.resize(list.size());
    std::vector<size_t> next;
    for (size_t r = 0; r < starts.size(); r += 2) {
      const size_t begin = starts[r];
      const size_t middle = r + 1 < starts.size() ? starts[r + 1] : list.size();
      const size_t end = r + 2 < starts.size() ? starts[r + 2] : list.size();
      next.push_back(begin);
      std::merge(list.begin() + begin, list.begin() + middle, list.begin() + middle, list.begin() + end,
                 scratch.begin() + begin, by_memory);
    }
    list.swap(scratch);
    starts.swap(next);
  }
}

// A group under a given allowance of reduced cost: its items and, per item, how many operators take which
// option.
struct Items {
  size_t group = 0;
  std::vector<Sum> sums;                                     // sorted by memory, none dominated
  std::vector<std::vector<std::pair<int, int32_t>>> counts;  // counts[i]: (option, operators) of sums[i]
  int64_t least_alternative = 0;                             // the smallest reduced cost but one
};

class Search {
 public:
  Search(const Problem& problem, Stopwatch& watch, const Tuning& tuning)
      : problem_(problem),
        watch_(watch),
        tuning_(tuning),
        groups_(make_groups(problem)),
        edges_(hull_edges(groups_)) {}

  Solution run();

 private:
  void price();
  bool make_items(size_t group, int64_t allowance, Items& items);
  void round(int64_t threshold, size_t cap, bool beam);
  void keep_cheapest(std::vector<Sum>& list);
  void extend(const std::vector<Sum>& from, const Items& items, std::vector<Sum>& to);
  void descend(const std::vector<Sum>& head, size_t next);
  void match(const std::vector<Sum>& head);
  void accept(size_t head, size_t tail, size_t last);

  // Plans worth finding: at most this much reduced cost above the relaxation.
  int64_t allowance() const { return std::min(threshold_, best_time_ - step_) - relaxed_.lower_bound_ps; }

  const Problem& problem_;
  Stopwatch& watch_;
  const Tuning& tuning_;
  std::vector<Group> groups_;
  std::vector<Edge> edges_;
  Relaxation relaxed_;
  Statistics statistics_;

  std::vector<std::vector<int64_t>> reduced_;  // [group][option], rounded down
  std::vector<int> cheapest_;                  // [group]: an option of reduced cost 0

  int64_t step_ = 1;       // times of plans differ by multiples of this
  int64_t threshold_ = 0;  // the round looks for plans up to this time
  int64_t best_time_ = 0, best_memory_ = 0;
  std::vector<std::vector<int64_t>> best_counts_;

  // One round. Lists of partial sums over items_[path_[0..]] (head) and over the tail's groups.
  std::vector<Items> items_;
  std::vector<size_t> head_order_, tail_order_;
  const Items* last_ = nullptr;               // the most critical group: in neither list
  Sum base_;                                  // groups with one item only
  std::vector<std::vector<Sum>> tail_lists_;  // tail_lists_[j]: sums over the first j tail groups
  std::vector<const std::vector<Sum>*> head_lists_;
  std::vector<Sum> scratch_;
  size_t cap_ = 0;     // longest list that is not cut into chunks
  bool beam_ = false;  // lists are cut to cap_ sums: finds plans, proves nothing
};

// Reduced costs under the relaxation's multiplier, rounded down to picoseconds.
void Search::price() {
  const int128 p = relaxed_.multiplier.numerator, q = relaxed_.multiplier.denominator;
  reduced_.resize(groups_.size());
  cheapest_.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto& options = groups_[g].options;
    int128 least = 0;
    for (size_t k = 0; k < options.size(); ++k) {
      const int128 priced = q * options[k].time_ps + p * options[k].memory_bytes;
      if (k == 0 || priced < least) least = priced, cheapest_[g] = static_cast<int>(k);
    }
    reduced_[g].resize(options.size());
    for (size_t k = 0; k < options.size(); ++k) {
      const int128 r = (q * options[k].time_ps + p * options[k].memory_bytes - least) / q;
      reduced_[g][k] = r > kLargestSum ? kLargestSum : static_cast<int64_t>(r);
    }
  }
}

// False when the budget is spent.
bool Search::make_items(size_t g, int64_t allowance, Items& items) {
  const auto& options = groups_[g].options;
  const auto& base = options[cheapest_[g]];
  const int64_t n = groups_[g].count;
  items.group = g;
  std::vector<int> open;
  items.least_alternative = kLargestSum;
  for (int k = 0; k < static_cast<int>(options.size()); ++k) {
    if (k == cheapest_[g] || reduced_[g][k] > allowance) continue;
    open.push_back(k);
    items.least_alternative = std::min(items.least_alternative, reduced_[g][k]);
  }
  // Counts of each open option, the rest takes the cheapest one. Dominance needs equal numbers of operators,
  // which all items have; while building, the operators not placed yet count as taking the cheapest option.
  struct Partial {
    Sum sum;
    int64_t used;
    std::vector<std::pair<int, int32_t>> counts;
  };
  std::vector<Partial> partials(1), kept;
  partials[0].sum = {n * base.memory_bytes, n * base.time_ps, 0, 0, 0};
  for (int k : open) {
    const int64_t dm = options[k].memory_bytes - base.memory_bytes, dt = options[k].time_ps - base.time_ps;
    const size_t before = partials.size();
    for (size_t i = 0; i < before; ++i) {
      Sum sum = partials[i].sum;
      int64_t used = partials[i].used;
      for (int32_t c = 1;; ++c) {
        sum.memory += dm, sum.time += dt, sum.reduced += reduced_[g][k];
        if (++used > n || sum.reduced > allowance) break;
        Partial next{sum, used, partials[i].counts};
        next.counts.emplace_back(k, c);
        partials.push_back(std::move(next));
        if (watch_.spent(100)) return false;
      }
    }
    if (k == open.front()) continue;
    // A partial is dominated by one with no more memory, no more time and no more operators placed.
    std::sort(partials.begin(), partials.end(), [](const Partial& a, const Partial& b) {
      if (by_memory(a.sum, b.sum) || by_memory(b.sum, a.sum)) return by_memory(a.sum, b.sum);
      return a.used != b.used ? a.used < b.used : a.counts < b.counts;
    });
    std::map<int64_t, int64_t> staircase;  // used -> least time with at most so many, strictly falling
    kept.clear();
    for (Partial& partial : partials) {
      auto above = staircase.upper_bound(partial.used);
      if (above != staircase.begin() && std::prev(above)->second <= partial.sum.time) continue;
      while (above != staircase.end() && above->second >= partial.sum.time) above = staircase.erase(above);
      staircase[partial.used] = partial.sum.time;
      kept.push_back(std::move(partial));
    }
    partials.swap(kept);
  }
  if (open.size() < 2) {
    std::sort(partials.begin(), partials.end(),
              [](const Partial& a, const Partial& b) { return by_memory(a.sum, b.sum); });
  }
  for (Partial& partial : partials) {
    if (!items.sums.empty() && partial.sum.time >= items.sums.back().time) continue;
    items.sums.push_back(partial.sum);
    auto& counts = items.counts.emplace_back(std::move(partial.counts));
    if (n > partial.used) counts.emplace_back(cheapest_[g], static_cast<int32_t>(n - partial.used));
  }
  return true;
}

void Search::extend(const std::vector<Sum>& from, const Items& items, std::vector<Sum>& to) {
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
    if (watch_.spent(static_cast<int64_t>(from.size()))) break;
  }
  statistics_.nodes += static_cast<int64_t>(to.size());
  merge_runs(to, std::move(starts), scratch_);
  drop_dominated(to);
  statistics_.largest_list = std::max(statistics_.largest_list, static_cast<int64_t>(to.size()));
}

// For each item of the last group, the best partner of each head sum in one pass: heads by rising memory,
// tails by falling memory.
void Search::match(const std::vector<Sum>& head) {
  const auto& tail = tail_lists_.back();
  for (size_t i = 0; i < last_->sums.size(); ++i) {
    const Sum& item = last_->sums[i];
    const int64_t room = problem_.limit_bytes - base_.memory - item.memory;
    const int64_t worth = best_time_ - base_.time - item.time;  // sums below this are better plans
    int64_t least = worth;
    size_t t = tail.size(), head_found = 0, tail_found = 0;
    for (size_t h = 0; h < head.size() && t > 0; ++h) {
      while (t > 0 && head[h].memory + tail[t - 1].memory > room) --t;
      if (t == 0) break;
      const int64_t time = head[h].time + tail[t - 1].time;
      if (time < least) least = time, head_found = h, tail_found = t - 1;
    }
    if (least < worth) {
      best_time_ = base_.time + item.time + least;
      accept(head_found, tail_found, i);
    }
    if (watch_.spent(static_cast<int64_t>(head.size() + tail.size()))) return;
  }
}

// Walks the parents of both halves and writes the incumbent's counts.
void Search::accept(size_t head, size_t tail, size_t last) {
  std::vector<const Items*> chosen;
  for (auto& counts : best_counts_) std::fill(counts.begin(), counts.end(), 0);
  best_memory_ = base_.memory;
  const auto take = [&](const Items& items, size_t i) {
    best_memory_ += items.sums[i].memory;
    for (const auto& [k, c] : items.counts[i]) best_counts_[items.group][k] += c;
  };
  for (const auto& items : items_) {
    if (items.sums.size() == 1) {
      for (const auto& [k, c] : items.counts[0]) best_counts_[items.group][k] += c;
    }
  }
  take(*last_, last);
  for (size_t j = head_lists_.size() - 1; j > 0; --j) {
    const Sum& s = (*head_lists_[j])[head];
    take(items_[head_order_[j - 1]], s.item);
    head = s.parent;
  }
  for (size_t j = tail_lists_.size() - 1; j > 0; --j) {
    const Sum& s = tail_lists_[j][tail];
    take(items_[tail_order_[j - 1]], s.item);
    tail = s.parent;
  }
}

// Extends `head`, a list over the first `next` head groups, by the others, in chunks of at most cap_ sums.
void Search::descend(const std::vector<Sum>& head, size_t next) {
  if (watch_.spent()) return;
  head_lists_.push_back(&head);
  if (next == head_order_.size()) {
    match(head);
  } else {
    std::vector<Sum> list;
    extend(head, items_[head_order_[next]], list);
    if (list.size() <= cap_) {
      if (!list.empty() && !watch_.stopped()) descend(list, next + 1);
    } else {
      // Chunks by reduced cost; inside a chunk the order by memory is restored.
      std::sort(list.begin(), list.end(), [](const Sum& a, const Sum& b) {
        return a.reduced != b.reduced ? a.reduced < b.reduced : by_memory(a, b);
      });
      std::vector<Sum> chunk;
      for (size_t begin = 0; begin < list.size() && !watch_.stopped(); begin += cap_) {
        if (list[begin].reduced > allowance()) break;
        if (beam_ && begin > 0) break;
        chunk.assign(list.begin() + begin, list.begin() + std::min(begin + cap_, list.size()));
        std::sort(chunk.begin(), chunk.end(), by_memory);
        descend(chunk, next + 1);
      }
    }
  }
  head_lists_.pop_back();
}

// The cap_ sums of least reduced cost.
void Search::keep_cheapest(std::vector<Sum>& list) {
  if (list.size() <= cap_) return;
  std::nth_element(list.begin(), list.begin() + static_cast<ptrdiff_t>(cap_), list.end(),
                   [](const Sum& a, const Sum& b) {
                     return a.reduced != b.reduced ? a.reduced < b.reduced : by_memory(a, b);
                   });
  list.resize(cap_);
  std::sort(list.begin(), list.end(), by_memory);
}

void Search::round(int64_t threshold, size_t cap, bool beam) {
  statistics_.rounds++;
  cap_ = cap, beam_ = beam;
  threshold_ = threshold;
  items_.clear();
  base_ = {};
  std::vector<size_t> open;
  for (size_t g = 0; g < groups_.size(); ++g) {
    Items& items = items_.emplace_back();
    if (!make_items(g, allowance(), items)) return;
    if (items.sums.size() == 1) {
      base_.memory += items.sums[0].memory;
      base_.time += items.sums[0].time;
      base_.reduced += items.sums[0].reduced;
    } else {
      open.push_back(g);
    }
  }
  std::stable_sort(open.begin(), open.end(), [&](size_t a, size_t b) {
    return items_[a].least_alternative > items_[b].least_alternative;
  });
  Items nothing;  // where no group is open
  nothing.sums.resize(1);
  nothing.counts.resize(1);
  last_ = &nothing;
  if (!open.empty()) {
    last_ = &items_[open.back()];
    open.pop_back();
  }
  head_order_.clear(), tail_order_.clear(), head_lists_.clear(), tail_lists_.clear();
  tail_lists_.emplace_back(1);
  std::vector<Sum> head(1);
  std::vector<std::vector<Sum>> head_storage(1, std::vector<Sum>(1));
  size_t next = 0;
  while (next < open.size() && std::min(head_storage.back().size(), tail_lists_.back().size()) <= cap_) {
    const bool to_tail = tail_lists_.back().size() <= head_storage.back().size();
    auto& lists = to_tail ? tail_lists_ : head_storage;
    (to_tail ? tail_order_ : head_order_).push_back(open[next]);
    std::vector<Sum> list;
    extend(lists.back(), items_[open[next]], list);
    if (beam_) keep_cheapest(list);
    lists.push_back(std::move(list));
    ++next;
    if (watch_.stopped()) return;
  }
  const size_t built = head_order_.size();
  head_order_.insert(head_order_.end(), open.begin() + next, open.end());
  for (size_t j = 0; j < built; ++j) head_lists_.push_back(&head_storage[j]);
  descend(head_storage[built], built);
}

Solution Search::run() {
  Solution s;
  statistics_.groups = static_cast<int64_t>(groups_.size());
  for (const auto& g : groups_) statistics_.options_left += static_cast<int64_t>(g.options.size());
  relaxed_ = relax(groups_, edges_, problem_.limit_bytes);
  s.smallest_limit_bytes = relaxed_.smallest_limit_bytes;
  s.multiplier = relaxed_.multiplier;
  if (relaxed_.feasible) {
    best_time_ = relaxed_.time_ps;
    best_memory_ = relaxed_.memory_bytes;
    best_counts_ = relaxed_.counts;
    int64_t bound = relaxed_.lower_bound_ps;
    if (bound < best_time_) {
      const Lattice lattice = make_lattice(groups_);
      step_ = std::max<int64_t>(lattice.a, 1);
      bound = std::min(best_time_, lattice_bound(lattice, problem_.limit_bytes, bound, relaxed_.multiplier));
    }
    if (bound < best_time_) price();
    for (int shift = 8; bound < best_time_ && shift >= 0; shift -= 2) {
      const int64_t threshold = std::min(best_time_ - step_, bound + ((best_time_ - bound) >> shift));
      if (shift == 8) {
        round(threshold, tuning_.beam, true);
        if (watch_.stopped()) break;
        if (bound > best_time_ - step_) bound = best_time_;
        if (bound == best_time_) break;
      }
      round(threshold, tuning_.chunk, false);
      if (watch_.stopped()) break;
      bound = std::min(best_time_, std::max(bound, threshold + 1));
      if (bound > best_time_ - step_) bound = best_time_;
    }
    s.lower_bound_ps = bound;
    s.time_ps = best_time_;
    s.memory_bytes = best_memory_;
    s.choices = spread_choices(problem_, groups_, best_counts_);
    s.status = bound == best_time_ ? Status::Optimal : Status::Feasible;
  }
  statistics_.seconds = watch_.seconds();
  s.statistics = statistics_;
  return s;
}

}  // namespace

Solution solve_exact(const Problem& problem, const Budget& budget, const Tuning& tuning) {
  if (tuning.beam < 1 || tuning.chunk < 1) throw InvalidProblem("beam and chunk must be at least 1");
  validate(problem);
  Stopwatch watch(budget);
  return Search(problem, watch, tuning).run();
}

}  // namespace osdp::search
