#include "search/heuristics/polish.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "search/bounds/pricing.hpp"
#include "search/heuristics/neighbours.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

constexpr size_t kInTurn = 3;   // seeds from which the search starts unchanged
constexpr int kStale = 40;      // consecutive changes without progress before a restart
constexpr int kRepairs = 3;     // most attempts to repair a plan over the limit
constexpr int kShrinks = 20;    // most attempts to shrink a plan over the limit
constexpr int kKept = 4;        // most blocks whose recomputation is dropped at once
constexpr int64_t kTries = 4;   // changes considered per step that may be simulated
constexpr double kGain = 2e-3;  // of the step, for which another turn is worth it

struct Played {
  IndexedPlan plan;
  int64_t step_ps = 0;
  size_t seed = 0;

  bool faster_than(const Played& other) const {
    return faster(step_ps, plan.batch, other.step_ps, other.plan.batch);
  }
};

class Polisher {
 public:
  Polisher(PlanEvaluator& evaluator, int64_t plays, const Spare& spare, double enough_ps,
           const std::function<bool()>& over)
      : evaluator_(evaluator),
        spare_(spare),
        enough_ps_(enough_ps),
        ended_(over),
        neighbours_(evaluator),
        plays_(std::max<int64_t>(plays, 1)),
        last_(evaluator.plays() + plays_),
        most_(evaluator.plays() + kMostTurns * plays_),
        tries_(kTries * plays_) {}

  void add(const IndexedPlan& seed, size_t number) {
    evaluator_.check(seed);
    if ((!seeds_.empty() && !more()) || known_.contains(key_of(seed))) return;
    if (fits(seed)) seeds_.push_back({seed, step_ps(seed), number});
  }

  Polished run() {
    if (seeds_.empty()) throw InvalidProblem("no plan to begin with keeps the limit");
    std::stable_sort(seeds_.begin(), seeds_.end(),
                     [](const Played& a, const Played& b) { return a.faster_than(b); });
    Played best = seeds_.front(), paid = best;
    for (size_t turn = 0; more(); ++turn) {
      const bool coarse = turn % 3 == 0;
      move_to(turn < std::min(kInTurn, seeds_.size()) ? seeds_[turn]
              : turn % 2 == 1                         ? best
                                                      : seeds_[neighbours_.below(seeds_.size())]);
      if (turn >= kInTurn && !coarse && !move_away()) continue;
      if (turn == 0) climb_in_order();
      if (coarse) climb(true);
      climb(false);
      if (here_.faster_than(best)) best = here_;
      if (gains(paid, best)) paid = best, go_on();
    }
    return {best.plan, best.step_ps, best.seed};
  }

 private:
  using Key = std::vector<int64_t>;
  static Key key_of(const IndexedPlan& plan) {
    Key key{plan.batch.size, plan.batch.accumulation, plan.prefetch};
    key.insert(key.end(), plan.decision.choices.begin(), plan.decision.choices.end());
    for (Recompute way : plan.decision.ways) key.push_back(static_cast<int64_t>(way));
    return key;
  }

  // Asks about each plan only once.
  int64_t spare(const IndexedPlan& plan) {
    const auto [at, fresh] = spares_.try_emplace(key_of(plan), 0);
    if (fresh) at->second = spare_(plan);
    return at->second;
  }
  bool fits(const IndexedPlan& plan) { return spare(plan) >= 0; }
  // An estimate: if its own peak is below its sum by as much as that of the current plan.
  bool may_fit(const IndexedPlan& plan) const { return evaluator_.peak_bytes(plan) <= sum_limit_; }

  void move_to(const Played& next) {
    here_ = next;
    sum_limit_ = evaluator_.peak_bytes(next.plan) + spare(next.plan);
  }

  bool more() const {
    return evaluator_.plays() < last_ && tries_ > 0 && !enough(here_) && !(ended_ && ended_());
  }
  static bool gains(const Played& from, const Played& to) {
    return static_cast<double>(to.step_ps) * static_cast<double>(from.plan.batch.samples()) <
           (1 - kGain) * static_cast<double>(from.step_ps) * static_cast<double>(to.plan.batch.samples());
  }
  // As many steps from here on as in the beginning.
  void go_on() {
    last_ = std::min(most_, evaluator_.plays() + plays_);
    tries_ = std::max(tries_, kTries * (last_ - evaluator_.plays()));
  }
  bool enough(const Played& played) const {
    return played.step_ps > 0 && static_cast<double>(played.step_ps) <=
                                     enough_ps_ * static_cast<double>(played.plan.batch.samples());
  }

  // Simulates each plan only once.
  int64_t step_ps(const IndexedPlan& plan) {
    const auto [at, fresh] = known_.try_emplace(key_of(plan), 0);
    if (fresh) at->second = evaluator_.step_ps(plan);
    return at->second;
  }

  // Applies a few changes at once, whatever they cost. False if the plan then cannot be made to fit.
  bool move_away() {
    IndexedPlan far = here_.plan;
    for (size_t n = 2 + neighbours_.below(4); n > 0; --n) neighbours_.change(far, false);
    --tries_;
    if (!settle(far, true)) return false;
    move_to({far, step_ps(far), here_.seed});
    return true;
  }

  void climb_in_order() {
    for (bool better = true; better && more();) {
      better = false;
      for (const auto& change : neighbours_.in_order()) {
        IndexedPlan next = here_.plan;
        if (!more() || !change(next) || too_slow(next) || !repair(next)) continue;
        better |= take(next);
      }
    }
  }

  // Moves to `next` if its simulated step is faster; returns whether it is.
  bool take(const IndexedPlan& next) {
    if (!more() || too_slow(next)) return false;
    const Played played{next, step_ps(next), here_.seed};
    if (!played.faster_than(here_)) return false;
    move_to(played);
    return true;
  }

  // Random changes, kept if the simulated step is no slower, until many in a row have not helped.
  void climb(bool coarse) {
    for (int stale = 0; stale < kStale && more(); ++stale, --tries_) {
      IndexedPlan next = here_.plan;
      neighbours_.change(next, coarse);
      while (neighbours_.below(3) == 0) neighbours_.change(next, coarse);
      if (key_of(next) == key_of(here_.plan) || !settle(next, false) || too_slow(next)) continue;
      const Played played{next, step_ps(next), here_.seed};
      if (here_.faster_than(played)) continue;
      if (played.faster_than(here_)) stale = -1;
      move_to(played);
    }
  }

  // Whether its bound is above the step of the current plan.
  bool too_slow(const IndexedPlan& plan) {
    return faster(here_.step_ps, here_.plan.batch, evaluator_.bound_ps(plan), plan.batch);
  }
  // Makes the plan fit. `slower`: also if it cannot be faster.
  bool settle(IndexedPlan& plan, bool slower) {
    if (neighbours_.below(2) == 1) {
      for (int n = 0; n < kKept; ++n) {
        IndexedPlan kept = plan;
        if (!neighbours_.keep_block(kept) || !may_fit(kept)) break;
        plan = std::move(kept);
      }
    }
    shrink(plan);
    return (slower || !too_slow(plan)) && fit(plan);
  }

  // Shrinks the plan at random.
  void shrink(IndexedPlan& plan) {
    int left = neighbours_.below(2) == 0 ? kShrinks : 0;
    while (left-- > 0 && !may_fit(plan) && neighbours_.shrink(plan)) continue;
  }
  // Shrinks the plan where the objective loses least, or at random.
  bool fit(IndexedPlan& plan) { return repair(plan) || (neighbours_.shrink(plan) && repair(plan)); }

  // Lowers the sum by what the plan's own peak is over; that peak may fall by less, so several times.
  bool repair(IndexedPlan& plan) {
    for (int n = 0; n < kRepairs; ++n) {
      if (fits(plan)) return true;
      PhaseMaxima phases(evaluator_.phases(plan));
      const int64_t most = phases.at(phases.largest_phase()) + spare(plan);
      if (!pricing_of(plan).repair(plan.decision, phases, most)) return false;
    }
    return fits(plan);
  }

  // The objective's costs for the plan's batch. Cached, since consecutive plans usually have the same batch.
  const Pricing& pricing_of(const IndexedPlan& plan) {
    if (!pricing_ || plan.batch != priced_batch_) {
      pricing_.emplace(evaluator_.model(), evaluator_.request(), evaluator_.classes(), plan.batch, false);
      priced_batch_ = plan.batch;
    }
    return *pricing_;
  }

  PlanEvaluator& evaluator_;
  const Spare& spare_;
  const double enough_ps_;
  const std::function<bool()>& ended_;
  Neighbours neighbours_;
  const int64_t plays_;
  int64_t last_;
  const int64_t most_;
  int64_t tries_;
  std::map<Key, int64_t> known_;  // simulated ps of a step
  std::map<Key, int64_t> spares_;
  std::vector<Played> seeds_;  // within the limit
  Played here_;
  int64_t sum_limit_ = 0;           // what the sum may be if a peak is below it by as much as that of here_
  std::optional<Pricing> pricing_;  // for the last batch
  Batch priced_batch_;
};

}  // namespace

Polished polish(PlanEvaluator& evaluator, const std::vector<IndexedPlan>& seeds, int64_t plays,
                const Spare& spare, double enough_ps, const std::function<bool()>& over) {
  Polisher polisher(evaluator, plays, spare, enough_ps, over);
  for (size_t n = 0; n < seeds.size(); ++n) polisher.add(seeds[n], n);
  return polisher.run();
}

}  // namespace osdp::search
