// Note [Least memory]
// The least largest phase is a game: one side picks a phase, or weighs phases; the other a plan. The plan of
// least weighted memory is found operator by operator (chooser), and whatever the weights its average is a
// bound. Fictitious play finds good weights: a phase's weight is how often it was the largest one of the plan
// found. Where some plan's largest phase meets the bound it is the least memory, to the byte; mostly the
// first or second plan does, since the smallest choices are smallest in all phases.
#include "search/least.hpp"

#include <algorithm>

#include "search/chooser.hpp"

namespace osdp::search {
namespace {

constexpr int kTurns = 48;

}  // namespace

LeastMemory least_memory(const Model& model, const Request& request, const Kinds& kinds, Stopwatch& watch) {
  LeastMemory best;
  best.bound_bytes = best.peak_bytes = kLargestSum;
  std::vector<Batch> batches = request.batches;
  if (batches.empty()) batches = {{1, 1}};
  for (const Batch& batch : batches) {
    for (int64_t transient : kinds.transients) {
      const int64_t reserve = request.reserve_bytes(transient);
      // Of this batch and transient. Smaller transients are a part of larger ones' plans with less reserve.
      int64_t bound = reserve, peak = kLargestSum;
      const Chooser chooser(model, request, kinds, batch, transient, true);
      if (!chooser.possible()) continue;
      std::vector<int64_t> weights(chooser.phases(), 0);
      weights.back() = 1;
      for (int turn = 1; turn <= kTurns; ++turn) {
        Decision decision;
        const int128 sum = chooser.least(weights, decision);
        const int128 average = (sum + turn - 1) / turn + reserve;
        bound = std::max(bound, static_cast<int64_t>(std::min<int128>(average, kLargestSum)));
        const auto phases = phase_bytes(model, request, kinds, decision, batch);
        const auto worst = std::max_element(phases.begin(), phases.end());
        peak = std::min(peak, std::min(kLargestSum, *worst + reserve));
        if (peak < best.peak_bytes) {
          best.peak_bytes = peak;
          best.batch = batch;
          best.decision = std::move(decision);
        }
        // After an early end the bound of this transient counts all the same.
        if (bound >= best.peak_bytes || watch.spent(static_cast<int64_t>(20 * phases.size()))) break;
        ++weights[worst - phases.begin()];
      }
      best.bound_bytes = std::min(best.bound_bytes, bound);
      if (watch.stopped()) {
        best.bound_bytes = 0;  // the other transients were not looked at
        return best;
      }
    }
  }
  best.bound_bytes = std::min(best.bound_bytes, best.peak_bytes);
  return best;
}

Kinds leanest(const Kinds& kinds, int64_t accumulation) {
  Kinds few = kinds;
  for (Kind& kind : few.kinds) {
    const auto has = [&](Recompute r) { return std::find(kind.ways.begin(), kind.ways.end(), r); };
    if (has(Recompute::Regather) != kind.ways.end() && has(Recompute::Hold) != kind.ways.end()) {
      kind.ways.erase(has(Recompute::Hold));
    }
    for (Slot& slot : kind.slots) {
      const auto all = slot.candidates[static_cast<int>(kind.ways[0])];
      const auto before = [&](const Candidate& c) {
        return c.state_bytes + c.gathered_bytes - (accumulation > 1 ? 0 : c.gradient_bytes);
      };
      std::vector<size_t> kept;
      for (size_t a = 0; a < all.size(); ++a) {
        bool out = false;
        for (size_t b = 0; b < all.size() && !out; ++b) {
          const Candidate &x = all[a], &y = all[b];
          const bool no_worse = y.state_bytes <= x.state_bytes && before(y) <= before(x) &&
                                before(y) + y.whole_gradient_bytes <= before(x) + x.whole_gradient_bytes &&
                                y.held_bytes <= x.held_bytes && y.transient_bytes <= x.transient_bytes;
          const bool equal = y.state_bytes == x.state_bytes && before(y) == before(x) &&
                             y.whole_gradient_bytes == x.whole_gradient_bytes &&
                             y.held_bytes == x.held_bytes && y.transient_bytes == x.transient_bytes;
          out = a != b && no_worse && (!equal || b < a);
        }
        if (!out) kept.push_back(a);
      }
      for (Recompute r : kind.ways) {
        auto& list = slot.candidates[static_cast<int>(r)];
        std::vector<Candidate> left;
        for (size_t c : kept) left.push_back(list[c]);
        list = std::move(left);
      }
    }
  }
  return few;
}

}  // namespace osdp::search
