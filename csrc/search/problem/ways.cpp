#include "search/problem/ways.hpp"

#include "search/problem/dominance.hpp"
#include "search/problem/phases.hpp"

namespace osdp::search {
namespace {

bool no_worse(const SlotOption& a, const SlotOption& b) {
  const auto in_its_phase = [](const SlotOption& o, int64_t held, int64_t late) {
    return o.before + o.own + held - late;
  };
  return a.time <= b.time && a.before <= b.before && a.after <= b.after &&
         a.after + a.left <= b.after + b.left && a.before + a.held <= b.before + b.held &&
         in_its_phase(a, 0, 0) <= in_its_phase(b, 0, 0) &&
         in_its_phase(a, 0, a.late) <= in_its_phase(b, 0, b.late) &&
         in_its_phase(a, a.held, 0) <= in_its_phase(b, b.held, 0) &&
         in_its_phase(a, a.held, a.late) <= in_its_phase(b, b.held, b.late);
}

std::vector<SlotOption> slot_options(const std::vector<Candidate>& candidates, Recompute way,
                                     const Request& request, Batch batch, bool memory_alone) {
  std::vector<SlotOption> options;
  for (size_t c = 0; c < candidates.size(); ++c) {
    const Candidate& x = candidates[c];
    SlotOption& o = options.emplace_back(slot_option(x, way, request, batch));
    o.candidate = static_cast<int>(c);
    if (!memory_alone) o.time = batch.accumulation * x.communication_ps + x.optimizer_ps;
  }
  keep_undominated(options, no_worse);
  return options;
}

}  // namespace

SlotOption slot_option(const Candidate& c, Recompute way, const Request& request, Batch batch) {
  SlotOption o;
  o.before = o.after = c.state_bytes;
  if (request.paper()) return o;
  const bool accumulates = batch.accumulation > 1;
  o.before += c.gathered_bytes - (accumulates ? 0 : c.gradient_bytes);
  o.own = own_in(c, accumulates);
  if (way == Recompute::Hold) o.held = c.held_bytes;
  o.late = c.late_bytes, o.left = c.left_bytes, o.left_phases = c.left_phases;
  return o;
}

PhasePrices::PhasePrices(const std::vector<double>& prices) : sums_(prices.size() + 1, 0) {
  for (size_t j = 0; j < prices.size(); ++j) sums_[j + 1] = sums_[j] + prices[j];
}

std::vector<Way> ways_of(const EquivalenceClass& cls, const Request& request, Batch batch,
                         bool memory_alone) {
  std::vector<Way> ways;
  for (Recompute r : cls.ways) {
    Way& way = ways.emplace_back();
    way.way = r;
    if (cls.block) way.in_flight = cls.in_flight[static_cast<int>(r)](batch.size);
    if (r != Recompute::None) {
      if (!memory_alone) way.time = batch.accumulation * cls.recompute_ps(batch.size);
      way.input = Linear{0, cls.input_bytes_per_sample}(batch.size);
    }
    for (const Slot& slot : cls.slots) {
      way.slots.push_back(
          slot_options(slot.candidates[static_cast<int>(r)], r, request, batch, memory_alone));
    }
  }
  return ways;
}

bool has_options(const EquivalenceClass& cls, const std::vector<Way>& ways) {
  for (const Way& way : ways) {
    for (size_t p = 0; p < cls.slots.size(); ++p) {
      if (way.slots[p].empty() && !cls.slots[p].candidates[static_cast<int>(way.way)].empty()) return false;
    }
  }
  return true;
}

}  // namespace osdp::search
