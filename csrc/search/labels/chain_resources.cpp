#include "search/labels/chain_resources.hpp"

#include <algorithm>

namespace osdp::search {
namespace {

bool no_worse(const SlotOption& a, const SlotOption& b) {
  return a.time <= b.time && a.before <= b.before && a.before + a.own <= b.before + b.own &&
         a.after <= b.after && a.before + a.held <= b.before + b.held &&
         a.before + a.own + a.held <= b.before + b.own + b.held;
}

std::vector<SlotOption> slot_options(const std::vector<Candidate>& candidates, Recompute way, Batch batch,
                                     int64_t transient, bool memory_alone) {
  std::vector<SlotOption> options;
  for (size_t c = 0; c < candidates.size(); ++c) {
    const Candidate& x = candidates[c];
    if (x.transient_bytes > transient) continue;
    SlotOption o;
    o.candidate = static_cast<int>(c);
    if (!memory_alone) o.time = batch.accumulation * x.communication_ps + x.optimizer_ps;
    o.after = x.state_bytes;
    o.before = x.state_bytes + x.gathered_bytes - (batch.accumulation > 1 ? 0 : x.gradient_bytes);
    o.own = x.own_bytes;
    if (way == Recompute::Hold) o.held = x.held_bytes;
    if (std::any_of(options.begin(), options.end(), [&](const SlotOption& y) { return no_worse(y, o); }))
      continue;
    std::erase_if(options, [&](const SlotOption& y) { return no_worse(o, y); });
    options.push_back(o);
  }
  return options;
}

}  // namespace

ChainResources::ChainResources(const Model& model, const Request& request, const Kinds& kinds, Batch batch,
                               Transient transient, bool memory_alone)
    : kinds_(kinds), operators_(model.operators.size()), blocks_(model.blocks.size()) {
  const int128 fixed = static_cast<int128>(batch.accumulation) * kinds.compute_ps(batch.size);
  if (fixed > kLargestSum) throw InvalidProblem("the time of one step overflows 2^61");
  fixed_ps_ = static_cast<int64_t>(fixed);
  reserved_ = request.reserve_bytes(transient.reserved) + kinds.held_bytes(batch);
  limit_ = request.limit_bytes - reserved_;
  possible_ = !request.paper();
  for (size_t k = 0; k < kinds.kinds.size(); ++k) {
    const Kind& kind = kinds.kinds[k];
    auto& saved = saved_.emplace_back();
    auto& work = work_.emplace_back();
    for (const Slot& slot : kind.slots)
      saved.push_back(slot.saved(batch.size)), work.push_back(slot.work(batch.size));
    auto& ways = ways_.emplace_back();
    for (Recompute r : kind.ways) {
      Way& way = ways.emplace_back();
      way.way = r;
      if (r != Recompute::None) {
        if (!memory_alone) way.time = Linear{0, kind.recompute_ps_per_sample}(batch.samples());
        way.input = Linear{0, kind.input_bytes_per_sample}(batch.size);
      }
      for (const Slot& slot : kind.slots) {
        const auto& all = slot.candidates[static_cast<int>(r)];
        way.slots.push_back(slot_options(all, r, batch, transient.largest, memory_alone));
        possible_ &= all.empty() || !way.slots.back().empty();
      }
    }
    for (size_t m = 0; m < kind.instances.size(); ++m) {
      const auto& at = kind.instances[m];
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
    const Kind& kind = kinds_.kinds[segments_[s].kind];
    const size_t m = segments_[s].instance;
    for (size_t p = 0; p < kind.slots.size(); ++p) d.choices[kind.instances[m][p]] = chosen[s].choices[p];
    if (kind.block) d.ways[kind.blocks[m]] = chosen[s].way;
  }
  return d;
}

}  // namespace osdp::search
