// Note [Least memory]
// Minimizing the largest phase is a zero-sum game: one player chooses a phase, or weights over phases, the
// other a plan. The plan of least weighted memory is found operator by operator (Pricing), and for any
// weights its weighted average is a lower bound. Fictitious play finds good weights: a phase's weight counts
// how often it was the largest of the plan found. A plan whose largest phase equals the bound has the least
// memory, to the byte; usually the first or second plan does, since the smallest choices are smallest in all
// phases.
#include "search/labels/min_memory_bound.hpp"

#include <algorithm>
#include <deque>

#include "search/bounds/pricing.hpp"
#include "search/labels/min_peak.hpp"

namespace osdp::search {
namespace {

constexpr int kTurns = 6;

// The game for one batch.
struct Part {
  Part(const Model& model, const Request& request, const EquivalenceClasses& classes, Batch b)
      : batch(b), pricing(model, request, classes, b, true), weights(pricing.phases(), 0) {
    weights.back() = 1;
  }

  void play(const Model& model, const Request& request, const EquivalenceClasses& classes, MinMemory& best) {
    Decision decision;
    const int128 average = (pricing.least(weights, decision) + turn - 1) / turn;
    bound = std::max(bound, static_cast<int64_t>(std::min<int128>(average, kLargestSum)));
    const auto phases = phase_bytes(model, request, classes, decision, batch);
    const auto worst = std::max_element(phases.begin(), phases.end());
    if (*worst < best.peak_bytes) {
      best.peak_bytes = *worst;
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
    const ChainResources chain(model, request, classes, batch, true);
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
  int64_t bound = 0;
  int turn = 1;  // equals the sum of all weights
  Pricing pricing;
  std::vector<int64_t> weights;
};

}  // namespace

MinMemory min_memory(const Model& model, const Request& request, const EquivalenceClasses& classes,
                     int64_t enough_bytes, Stopwatch& watch) {
  MinMemory best;
  best.peak_bytes = kLargestSum;
  std::deque<Part> parts;
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
  for (const auto& [batch, _] : request.ranges()) {  // the smallest batch of a range needs the least
    parts.emplace_back(model, request, classes, batch);
    if (!parts.back().pricing.possible()) {
      parts.pop_back();
    } else if (play(parts.back())) {
      return best;
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
  for (Part& part : parts) {  // solve what is still open
    if (part.bound >= best.peak_bytes || watch.spent(part.work())) continue;
    part.settle(model, request, classes, best, watch);
    if (best.peak_bytes <= enough_bytes) return best;
  }
  best.bound_bytes = best.peak_bytes;
  for (const Part& part : parts) best.bound_bytes = std::min(best.bound_bytes, part.bound);
  return best;
}

}  // namespace osdp::search
