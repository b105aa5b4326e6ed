#include "search/problem/phases.hpp"

#include <algorithm>
#include <map>

#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

int relation_of(int row, const std::vector<int>& operators) {
  if (row == kWholeStep) return kSum;
  if (row < operators.front()) return kOver;
  if (row > operators.back()) return kToCome;
  int slot = 0;
  while (slot + 1 < static_cast<int>(operators.size()) && operators[slot + 1] <= row) ++slot;
  return inside(slot, operators[slot] == row);
}

}  // namespace

std::vector<SymmetryClass> make_symmetry_classes(const EquivalenceClasses& classes,
                                                 const std::vector<int>& rows) {
  std::vector<SymmetryClass> groups;
  for (size_t k = 0; k < classes.classes.size(); ++k) {
    std::map<std::vector<int>, size_t> known;
    const auto& instances = classes.classes[k].instances;
    for (size_t n = 0; n < instances.size(); ++n) {
      std::vector<int> relation;
      for (int row : rows) relation.push_back(relation_of(row, instances[n]));
      const auto [it, fresh] = known.emplace(relation, groups.size());
      if (fresh) groups.push_back({static_cast<int>(k), {}, relation});
      groups[it->second].instances.push_back(static_cast<int>(n));
    }
  }
  return groups;
}

Linear kept_in(int relation, const EquivalenceClass& cls, Recompute way) {
  Linear kept;
  if (cls.block) kept = cls.in_flight[static_cast<int>(way)];
  if (relation == kOver) return kept;
  if (way != Recompute::None) kept.per_sample += cls.input_bytes_per_sample;
  if (way != Recompute::None && relation == kToCome) return kept;
  for (int p = 0; p < static_cast<int>(cls.slots.size()); ++p) {
    if (relation >= 0 && p > slot_of(relation)) break;
    kept.fixed += cls.slots[p].saved.fixed;
    kept.per_sample += cls.slots[p].saved.per_sample;
    if (relation != inside(p, true)) continue;
    kept.fixed += cls.slots[p].work.fixed;
    kept.per_sample += cls.slots[p].work.per_sample;
  }
  return kept;
}

int64_t largest_transient(const EquivalenceClasses& classes, const Decision& decision) {
  int64_t most = 0;
  for_each_choice(classes, decision,
                  [&](int, const Candidate& c) { most = std::max(most, c.transient_bytes); });
  return most;
}

std::vector<int64_t> phase_bytes(const Model& model, const Request& request,
                                 const EquivalenceClasses& classes, const Decision& decision, Batch batch) {
  const size_t n = model.operators.size();
  const bool accumulates = batch.accumulation > 1;
  // Per operator: memory before and after its backward, in its own phase only, and of its block's
  // recomputation; what another one has left there, and what of its own comes later.
  std::vector<int64_t> before(n), after(n), own(n), extra(n), left(n), late(n);
  int128 sum = classes.held(batch.size), kept = 0;
  const auto narrow = [](int128 v) { return static_cast<int64_t>(std::min<int128>(v, kLargestSum)); };
  for (const EquivalenceClass& cls : classes.classes) {
    for (size_t m = 0; m < cls.instances.size(); ++m) {
      const auto& operators = cls.instances[m];
      const Recompute way = cls.block ? decision.ways[cls.blocks[m]] : Recompute::None;
      if (cls.block) {
        const int64_t others = cls.in_flight[static_cast<int>(way)](batch.size);
        before[operators.front()] += others, after[operators.front()] += others;
      }
      if (way != Recompute::None) {
        before[operators.front()] += Linear{0, cls.input_bytes_per_sample}(batch.size);
      }
      int64_t again = 0;  // what recomputation of the block has restored, up to slot p
      for (size_t p = 0; p < operators.size(); ++p) {
        const int i = operators[p];
        const int64_t saved = cls.slots[p].saved(batch.size);
        own[i] = cls.slots[p].work(batch.size);
        kept += saved;
        (way == Recompute::None ? before[i] : again) += saved;
        if (decision.choices[i] >= 0) {
          const Candidate& c = cls.slots[p].candidates[static_cast<int>(way)][decision.choices[i]];
          after[i] += c.state_bytes;
          before[i] += c.state_bytes - c.gradient_bytes + c.gathered_bytes;
          if (accumulates) before[i] += c.gradient_bytes;
          if (way == Recompute::Hold) again += c.held_bytes;
          own[i] += own_in(c, accumulates);
          late[i] = c.late_bytes;
          for (int64_t k = 1; k <= c.left_phases; ++k) left[i - k] = c.left_bytes;
        }
        if (way == Recompute::None) continue;
        const int until = p + 1 < operators.size() ? operators[p + 1] : i + 1;
        for (int j = i; j < until; ++j) extra[j] += again;
      }
    }
  }
  for (size_t i = 0; i < n; ++i) sum += after[i];
  if (request.paper()) return {narrow(sum + kept)};
  std::vector<int64_t> phases(n);
  for (size_t j = 0; j < n; ++j) {
    sum += before[j] - after[j];
    phases[j] = narrow(sum + own[j] + extra[j] + std::max<int64_t>(0, left[j] - late[j]));
  }
  return phases;
}

}  // namespace osdp::search
