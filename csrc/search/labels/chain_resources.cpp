#include "search/labels/chain_resources.hpp"

#include <algorithm>

namespace osdp::search {

ChainResources::ChainResources(const Model& model, const Request& request, const EquivalenceClasses& classes,
                               Batch batch, bool memory_alone)
    : classes_(classes), operators_(model.operators.size()), blocks_(model.blocks.size()) {
  const int128 fixed = static_cast<int128>(batch.accumulation) * classes.compute_ps(batch.size);
  if (fixed > kLargestSum) throw InvalidProblem("the time of one step overflows 2^61");
  fixed_ps_ = static_cast<int64_t>(fixed);
  reserved_ = classes.held(batch.size);
  limit_ = request.limit_bytes - reserved_;
  possible_ = !request.paper();
  for (size_t k = 0; k < classes.classes.size(); ++k) {
    const EquivalenceClass& cls = classes.classes[k];
    auto& saved = saved_.emplace_back();
    auto& work = work_.emplace_back();
    for (const Slot& slot : cls.slots)
      saved.push_back(slot.saved(batch.size)), work.push_back(slot.work(batch.size));
    ways_.push_back(ways_of(cls, request, batch, memory_alone));
    possible_ &= has_options(cls, ways_.back());
    for (size_t m = 0; m < cls.instances.size(); ++m) {
      const auto& at = cls.instances[m];
      segments_.push_back({k, m, static_cast<size_t>(at.front()), static_cast<size_t>(at.back()) + 1});
      possible_ &= at.back() - at.front() + 1 == static_cast<int>(at.size());
    }
  }
  std::sort(segments_.begin(), segments_.end(),
            [](const Segment& a, const Segment& b) { return a.first < b.first; });
}

Decision ChainResources::decide(const std::vector<Chosen>& chosen) const {
  Decision d;
  d.choices.assign(operators_, -1);
  d.ways.assign(blocks_, Recompute::None);
  for (size_t s = 0; s < segments_.size(); ++s) {
    const EquivalenceClass& cls = classes_.classes[segments_[s].cls];
    const size_t m = segments_[s].instance;
    for (size_t p = 0; p < cls.slots.size(); ++p) d.choices[cls.instances[m][p]] = chosen[s].choices[p];
    if (cls.block) d.ways[cls.blocks[m]] = chosen[s].way;
  }
  return d;
}

}  // namespace osdp::search
