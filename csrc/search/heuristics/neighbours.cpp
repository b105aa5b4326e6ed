#include "search/heuristics/neighbours.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace osdp::search {

Neighbours::Neighbours(const PlanEvaluator& evaluator) : evaluator_(evaluator) {
  const Model& model = evaluator.model();
  of_block_.resize(model.blocks.size());
  for (int i = 0; i < static_cast<int>(model.operators.size()); ++i) {
    size_t options = 0, whole = 0;
    for (const Recompute way : {Recompute::None, Recompute::Hold, Recompute::Regather}) {
      const auto& list = evaluator.candidates(i, way);
      options = std::max(options, list.size());
      whole = std::max(
          whole, static_cast<size_t>(std::count_if(list.begin(), list.end(),
                                                   [](const Candidate& c) { return c.granularity == 1; })));
    }
    options_.push_back(options), whole_.push_back(whole);
    if (options > 1) open_.push_back(i);
    if (model.operators[i].block >= 0) of_block_[model.operators[i].block].push_back(i);
  }
  for (const EquivalenceClass& cls : evaluator.classes().classes) {
    if (cls.block && cls.ways.size() > 1) recomputed_.push_back(&cls);
    if (model.operators[cls.instances.front().front()].block >= 0 ||
        options_[cls.instances.front().front()] < 2)
      continue;
    auto& alike = alike_.emplace_back();
    for (const auto& instance : cls.instances) alike.push_back(instance.front());
  }
  // Blocks of different widths are grouped too, if they have the same positions.
  std::map<std::array<size_t, 3>, std::vector<int>> places;
  for (const auto& block : of_block_) {
    for (size_t p = 0; p < block.size(); ++p)
      if (options_[block[p]] > 1) places[{block.size(), p, options_[block[p]]}].push_back(block[p]);
  }
  for (auto& [place, operators] : places) alike_.push_back(std::move(operators));
  list_in_order();
}

void Neighbours::list_in_order() {
  for (const int64_t prefetch : evaluator_.request().space.prefetches)
    in_order_.push_back(
        [prefetch](IndexedPlan& plan) { return std::exchange(plan.prefetch, prefetch) != prefetch; });
  add_operators(open_);
  for (const EquivalenceClass* cls : recomputed_) {
    for (const Recompute way : cls->ways) {
      for (size_t most = cls->blocks.size(); most > 0; most /= 2) {
        for (const bool first : {true, false}) {
          in_order_.push_back([cls, way, most, first](IndexedPlan& plan) {
            size_t left = most;
            for (size_t n = 0; n < cls->blocks.size() && left > 0; ++n) {
              Recompute& now = plan.decision.ways[cls->blocks[first ? n : cls->blocks.size() - 1 - n]];
              if (now != way) now = way, --left;
            }
            return left < most;
          });
        }
      }
    }
  }
  for (const auto& alike : alike_) {
    add_operators(alike);
    if (alike.size() < 2) continue;
    const auto middle = alike.begin() + static_cast<std::ptrdiff_t>(alike.size() / 2);
    add_operators({alike.begin(), middle});
    add_operators({middle, alike.end()});
  }
  for (size_t n = 0; n < kEnds && 2 * n < open_.size(); ++n) {
    add_operators({open_[n]});
    add_operators({open_[open_.size() - 1 - n]});
  }
}

void Neighbours::add_operators(std::vector<int> operators) {
  const Space& space = evaluator_.request().space;
  for (const Mode mode : space.modes) {
    for (const bool only_slices : {false, true})
      in_order_.push_back([this, operators, mode, only_slices](IndexedPlan& plan) {
        return set(plan, operators, mode, 1, only_slices);
      });
  }
  if (operators.size() == open_.size()) return;
  for (const int64_t slices : space.granularities)
    in_order_.push_back([this, operators, slices](IndexedPlan& plan) {
      return set(plan, operators, Mode::FullShard, slices, false);
    });
}

// Sets `operators`, or only those that are split, to `mode` in so many slices, all of them sharded.
bool Neighbours::set(IndexedPlan& plan, const std::vector<int>& operators, Mode mode, int64_t slices,
                     bool only_slices) const {
  bool changed = false;
  for (const int i : operators) {
    const auto& list = evaluator_.candidates(i, evaluator_.way_of(i, plan.decision));
    int& choice = plan.decision.choices[i];
    if (only_slices && list[choice].granularity == 1) continue;
    const auto to = std::find_if(list.begin(), list.end(), [&](const Candidate& c) {
      return c.mode == mode && c.granularity == slices && (slices == 1 || c.sharded_slices == slices);
    });
    if (to == list.end() || to - list.begin() == choice) continue;
    choice = static_cast<int>(to - list.begin());
    changed = true;
  }
  return changed;
}

void Neighbours::change(IndexedPlan& plan, bool coarse) {
  const size_t what = below(20);
  if (what < 2 && set_batch(plan)) return;
  if (what < 6 && !recomputed_.empty()) return set_blocks(plan, coarse);
  if (what < 9 && of_block_.size() > 1) return copy_block(plan, coarse);
  if (what == 19 && set_prefetch(plan)) return;
  if (open_.empty()) return;
  if (what < 10) return swap(plan);
  if (what < 12 && !coarse) return set_run(plan);
  set_operators(plan, coarse);
}

// A random range: everything, one element, or several.
Neighbours::Range Neighbours::range(size_t length, bool coarse) {
  const size_t what = coarse ? 0 : below(10);
  if (what < 3) return {0, length};
  const size_t first = below(length);
  return {first, what < 6 ? first + 1 : first + 1 + below(length - first)};
}

void Neighbours::set_operators(IndexedPlan& plan, bool coarse) {
  const bool one = !coarse && below(2) == 0;
  const auto& alike = one ? open_ : alike_[below(alike_.size())];
  Range changed = range(alike.size(), coarse);
  if (one) changed.last = (changed.first = below(alike.size())) + 1;
  // Slices add many options, most of them similar, so half of the moves choose among unsplit ones.
  const int op = alike[changed.first];
  const size_t to = below(whole_[op] > 0 && below(2) == 0 ? whole_[op] : options_[op]);
  for (size_t n = changed.first; n < changed.last; ++n)
    plan.decision.choices[alike[n]] = static_cast<int>(to);
}

void Neighbours::set_run(IndexedPlan& plan) {
  const size_t first = below(open_.size()), last = std::min(open_.size(), first + 2 + below(3));
  const std::vector<Mode>& modes = evaluator_.request().space.modes;
  set(plan,
      {open_.begin() + static_cast<std::ptrdiff_t>(first), open_.begin() + static_cast<std::ptrdiff_t>(last)},
      modes[below(modes.size())], 1, false);
}

void Neighbours::set_blocks(IndexedPlan& plan, bool coarse) {
  const EquivalenceClass& cls = *recomputed_[below(recomputed_.size())];
  const Recompute to = cls.ways[below(cls.ways.size())];
  const auto [first, last] = range(cls.blocks.size(), coarse);
  for (size_t n = first; n < last; ++n) plan.decision.ways[cls.blocks[n]] = to;
}

void Neighbours::copy_block(IndexedPlan& plan, bool coarse) {
  const size_t from = below(of_block_.size());
  const bool recomputation = below(2) == 0;
  const auto [first, last] = range(of_block_.size(), coarse);
  for (size_t to = first; to < last; ++to) {
    if (of_block_[to].empty() || of_block_[to].size() != of_block_[from].size()) continue;
    for (size_t p = 0; p < of_block_[to].size(); ++p) {
      const int i = of_block_[to][p], like = of_block_[from][p];
      if (options_[i] == options_[like]) plan.decision.choices[i] = plan.decision.choices[like];
    }
    if (recomputation) plan.decision.ways[to] = plan.decision.ways[from];
  }
}

bool Neighbours::set_batch(IndexedPlan& plan) {
  const std::vector<Batch>& given = evaluator_.request().batches;
  if (given.size() == 1) return false;
  if (!given.empty()) {
    plan.batch = given[below(given.size())];
    return true;
  }
  const int64_t far = 1 + static_cast<int64_t>(below(1 + static_cast<size_t>(plan.batch.size / 4)));
  const int64_t to = plan.batch.size + (below(2) == 0 ? far : -far);
  plan.batch.size = std::clamp<int64_t>(to, 1, evaluator_.classes().most_batch);
  return true;
}

bool Neighbours::set_prefetch(IndexedPlan& plan) {
  const std::vector<int64_t>& allowed = evaluator_.request().space.prefetches;
  if (allowed.size() < 2) return false;
  plan.prefetch = allowed[below(allowed.size())];
  return true;
}

void Neighbours::swap(IndexedPlan& plan) {
  const auto& alike = alike_[below(alike_.size())];
  const int one = alike[below(alike.size())], other = alike[below(alike.size())];
  std::swap(plan.decision.choices[one], plan.decision.choices[other]);
}

bool Neighbours::shrink(IndexedPlan& plan) {
  if (recomputed_.empty() || below(3) == 0) return smaller_transient(plan);
  const EquivalenceClass& cls = *recomputed_[below(recomputed_.size())];
  std::vector<int> kept;
  for (const int b : cls.blocks)
    if (plan.decision.ways[b] == Recompute::None) kept.push_back(b);
  if (kept.empty()) return smaller_transient(plan);
  std::vector<Recompute> ways = cls.ways;
  std::erase(ways, Recompute::None);
  plan.decision.ways[kept[below(kept.size())]] = ways[below(ways.size())];
  return true;
}

bool Neighbours::smaller_transient(IndexedPlan& plan) const {
  const int64_t most = largest_transient(evaluator_.classes(), plan.decision);
  IndexedPlan next = plan;
  for (const int i : open_) {
    const auto& list = evaluator_.candidates(i, evaluator_.way_of(i, plan.decision));
    int& choice = next.decision.choices[i];
    if (list[choice].transient_bytes < most) continue;
    int best = -1;
    for (int c = 0; c < static_cast<int>(list.size()); ++c) {
      if (list[c].transient_bytes >= most) continue;
      if (best < 0 || list[c].communication_ps < list[best].communication_ps) best = c;
    }
    if (best < 0) return false;
    choice = best;
  }
  plan = std::move(next);
  return most > 0;
}

bool Neighbours::keep_block(IndexedPlan& plan) {
  if (recomputed_.empty()) return false;
  const EquivalenceClass& cls = *recomputed_[below(recomputed_.size())];
  if (std::find(cls.ways.begin(), cls.ways.end(), Recompute::None) == cls.ways.end()) return false;
  std::vector<int> again;
  for (const int b : cls.blocks)
    if (plan.decision.ways[b] != Recompute::None) again.push_back(b);
  if (again.empty()) return false;
  plan.decision.ways[again[below(again.size())]] = Recompute::None;
  return true;
}

}  // namespace osdp::search
