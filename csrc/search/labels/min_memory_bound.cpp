// Note [Least memory]
// Minimizing the largest phase is a zero-sum game: one player chooses a phase, or weights over phases, the
// other a plan. The plan of least weighted memory is found operator by operator (Pricing), and for any
// weights its weighted average is a lower bound. Fictitious play finds good weights: a phase's weight counts
// how often it was the largest of the plan found. A plan whose largest phase equals the bound has the least
// memory, to the byte; usually the first or second plan does, since the smallest choices are smallest in all
// phases.
//
// The game is played for each largest transient. If there are very many (a model of thousands of distinct
// operators), neighbours share a band, with the options of its largest and the reserve of its smallest; a
// band is split only if it leaves the answer open.
#include "search/labels/min_memory_bound.hpp"

#include <algorithm>
#include <deque>
#include <numeric>

#include "search/bounds/pricing.hpp"
#include "search/bounds/region_pricing.hpp"
#include "search/labels/min_peak.hpp"

namespace osdp::search {
namespace {

constexpr int kTurns = 6;

// The game for one batch and an interval of largest transients. (Plans with a smaller transient belong to
// other parts, with a smaller reserve.)
struct Part {
  Part(const Model& model, const Request& request, const EquivalenceClasses& classes, Batch b, size_t first,
       size_t last)
      : batch(b),
        transient_lo(first),
        transient_hi(last),
        transient(classes.transients[transient_hi]),
        reserve(request.reserve_bytes(classes.transients[transient_lo])),
        bound(reserve),
        pricing(model, request, classes, b, transient, true),
        weights(pricing.phases(), 0) {
    weights.back() = 1;
  }

  void play(const Model& model, const Request& request, const EquivalenceClasses& classes, MinMemory& best) {
    Decision decision;
    const int128 average = (pricing.least(weights, decision) + turn - 1) / turn + reserve;
    bound = std::max(bound, static_cast<int64_t>(std::min<int128>(average, kLargestSum)));
    const auto phases = phase_bytes(model, request, classes, decision, batch);
    const auto worst = std::max_element(phases.begin(), phases.end());
    const int64_t room =
        transient_lo == transient_hi ? reserve : request.reserve_bytes(largest_transient(classes, decision));
    const int64_t peak = std::min(kLargestSum, *worst + room);
    if (peak < best.peak_bytes) {
      best.peak_bytes = peak;
      best.batch = batch;
      best.decision = std::move(decision);
    }
    ++weights[worst - phases.begin()];
    ++turn;
  }
  // Solves the part exactly if that succeeds: then the bound is the least peak, or not below the best known
  // one.
  void settle(const Model& model, const Request& request, const EquivalenceClasses& classes, MinMemory& best,
              Stopwatch& watch) {
    const ChainResources chain(model, request, classes, batch, transient, true);
    if (!chain.possible()) return;
    const MinPeak least = min_peak(chain, best.peak_bytes - chain.reserved(), watch);
    if (!least.complete) return;
    bound = best.peak_bytes;
    if (!least.found) return;
    bound = best.peak_bytes = least.peak_bytes + chain.reserved();
    best.batch = batch;
    best.decision = least.decision;
  }
  int64_t work() const { return static_cast<int64_t>(50 * weights.size()); }

  Batch batch;
  size_t transient_lo, transient_hi;  // range of transients, as indices
  int64_t transient, reserve, bound;
  int turn = 1;  // equals the sum of all weights
  Pricing pricing;
  std::vector<int64_t> weights;
};

// The bands of transients; those in which every operator can be sharded come first.
std::vector<size_t> band_order(const EquivalenceClasses& classes, const Bands& bands) {
  int64_t enough = 0;
  for (const EquivalenceClass& cls : classes.classes) {
    for (const Slot& slot : cls.slots) {
      int64_t least = kLargestSum;
      for (const Candidate& c : slot.candidates[static_cast<int>(cls.ways[0])]) {
        if (c.mode != Mode::NoShard) least = std::min(least, c.transient_bytes);
      }
      if (least < kLargestSum) enough = std::max(enough, least);
    }
  }
  std::vector<size_t> order(bands.count());
  std::iota(order.begin(), order.end(), 0);
  std::stable_partition(order.begin(), order.end(),
                        [&](size_t band) { return classes.transients[bands.last(band)] >= enough; });
  return order;
}

}  // namespace

MinMemory min_memory(const Model& model, const Request& request, const EquivalenceClasses& classes,
                     int64_t enough_bytes, Stopwatch& watch) {
  MinMemory best;
  best.peak_bytes = kLargestSum;
  std::deque<Part> parts;
  const auto begin = [&](const Batch& batch, size_t transient_lo, size_t transient_hi) {
    parts.emplace_back(model, request, classes, batch, transient_lo, transient_hi);
    if (parts.back().pricing.possible()) return true;
    parts.pop_back();
    return false;
  };
  const auto play = [&](Part& part) {  // true: stop
    part.play(model, request, classes, best);
    return best.peak_bytes <= enough_bytes || watch.spent(part.work());
  };
  const auto play_on = [&](Part& part, int turns) {
    while (part.turn <= turns && part.bound < best.peak_bytes) {
      if (play(part)) return true;
    }
    return false;
  };
  const Bands bands{0, classes.transients.size() - 1};
  const std::vector<size_t> in_order = band_order(classes, bands);
  for (const auto& [batch, _] : request.ranges()) {  // the smallest batch of a range needs the least
    for (size_t band : in_order) {
      if (begin(batch, bands.first(band), bands.last(band)) && play(parts.back())) return best;
    }
  }
  // First a few turns of every part, then more for those that may still contain the minimum.
  for (const int turns : {2, kTurns}) {
    std::vector<Part*> order;
    for (Part& part : parts) order.push_back(&part);
    std::stable_sort(order.begin(), order.end(),
                     [](const Part* a, const Part* b) { return a->bound < b->bound; });
    for (Part* part : order) {
      if (play_on(*part, turns)) return best;
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) {  // split or solve what is still open
    Part& part = parts[i];
    if (part.bound >= best.peak_bytes || watch.spent(part.work())) continue;
    if (part.transient_lo < part.transient_hi) {
      const size_t middle = part.transient_lo + (part.transient_hi - part.transient_lo) / 2;
      if (begin(part.batch, part.transient_lo, middle) && play_on(parts.back(), kTurns)) return best;
      if (begin(part.batch, middle + 1, part.transient_hi) && play_on(parts.back(), kTurns)) return best;
      part.bound = kLargestSum;  // replaced by its two halves
      continue;
    }
    part.settle(model, request, classes, best, watch);
    if (best.peak_bytes <= enough_bytes) return best;
  }
  best.bound_bytes = best.peak_bytes;
  for (const Part& part : parts) best.bound_bytes = std::min(best.bound_bytes, part.bound);
  return best;
}

}  // namespace osdp::search
