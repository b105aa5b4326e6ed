#include "search/heuristics/polish.hpp"

#include <algorithm>
#include <set>

#include "search/bounds/pricing.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

constexpr int kEnds = 6;  // operators at either end of the model that are changed by themselves

struct Played {
  Candidacy plan;
  int64_t step_ps = 0;
  size_t seed = 0;

  bool faster_than(const Played& other) const {
    return static_cast<int128>(step_ps) * other.plan.batch.samples() <
           static_cast<int128>(other.step_ps) * plan.batch.samples();
  }
};

class Polisher {
 public:
  Polisher(Rehearsal& rehearsal, int64_t plays)
      : rehearsal_(rehearsal), last_(rehearsal.plays() + std::max<int64_t>(plays, 1)) {
    for (const Kind& kind : rehearsal.kinds().kinds) {
      for (size_t p = 0; p < kind.slots.size(); ++p) {
        auto& alike = alike_.emplace_back();
        for (const auto& instance : kind.instances) alike.push_back(instance[p]);
        if (choices_of(alike.front()) < 2) alike_.pop_back();
      }
    }
    for (int i = 0; i < static_cast<int>(rehearsal.model().operators.size()); ++i)
      if (choices_of(i) > 1) open_.push_back(i);
  }

  void add(const Candidacy& seed, size_t number) {
    rehearsal_.check(seed);
    if (!known(seed) && more() && rehearsal_.peak_bytes(seed) <= limit())
      seeds_.push_back({seed, rehearsal_.step_ps(seed), number});
  }

  Polished run() {
    if (seeds_.empty()) throw InvalidProblem("no plan to begin with keeps the limit");
    std::stable_sort(seeds_.begin(), seeds_.end(),
                     [](const Played& a, const Played& b) { return a.faster_than(b); });
    Played best = seeds_.front();
    for (const Played& seed : seeds_) {
      const Played found = climb(seed);
      if (found.faster_than(best)) best = found;
      if (!more()) break;
    }
    const Candidacy& plan = best.plan;
    return {{plan.batch, largest_transient(rehearsal_.kinds(), plan.decision), plan.decision,
             rehearsal_.objective_ps(plan), rehearsal_.peak_bytes(plan)},
            best.step_ps,
            best.seed};
  }

 private:
  int64_t limit() const { return rehearsal_.request().limit_bytes; }
  bool more() const { return rehearsal_.plays() < last_; }
  size_t choices_of(int op) const {
    return std::max({rehearsal_.candidates(op, Recompute::None).size(),
                     rehearsal_.candidates(op, Recompute::Hold).size(),
                     rehearsal_.candidates(op, Recompute::Regather).size()});
  }

  // Whether it was played; it will not be again.
  bool known(const Candidacy& plan) {
    std::vector<int64_t> key{plan.batch.size, plan.batch.accumulation};
    key.insert(key.end(), plan.decision.choices.begin(), plan.decision.choices.end());
    for (Recompute way : plan.decision.ways) key.push_back(static_cast<int64_t>(way));
    return !known_.insert(std::move(key)).second;
  }

  // Changes as long as one helps.
  Played climb(const Played& from) {
    here_ = from;
    bool better = true;
    while (better && more()) {
      better = change_all() | change_blocks() | change_kinds() | change_ends();
    }
    return here_;
  }

  bool change_all() {
    bool better = false;
    for (const Mode mode : rehearsal_.request().space.modes) {
      better |= set(open_, mode, false);
      better |= set(open_, mode, true);
    }
    return better;
  }

  bool change_kinds() {
    bool better = false;
    for (const auto& alike : alike_) {
      for (const Mode mode : rehearsal_.request().space.modes) {
        better |= set(alike, mode, false);
        if (alike.size() < 2) continue;
        const auto middle = alike.begin() + static_cast<std::ptrdiff_t>(alike.size() / 2);
        better |= set({alike.begin(), middle}, mode, false) | set({middle, alike.end()}, mode, false);
      }
    }
    return better;
  }

  bool change_ends() {
    bool better = false;
    for (int n = 0; n < kEnds && 2 * n < static_cast<int>(open_.size()); ++n) {
      for (const int op : {open_[n], open_[open_.size() - 1 - n]}) {
        for (const Mode mode : rehearsal_.request().space.modes) better |= set({op}, mode, false);
      }
    }
    return better;
  }

  // The first and the last blocks of a kind, of all of them down to one.
  bool change_blocks() {
    bool better = false;
    for (const Kind& kind : rehearsal_.kinds().kinds) {
      if (!kind.block || kind.ways.size() < 2) continue;
      for (const Recompute way : kind.ways) {
        for (size_t m = kind.blocks.size(); m > 0; m /= 2) {
          for (const bool first : {true, false}) {
            Candidacy next = here_.plan;
            size_t left = m;
            for (size_t n = 0; n < kind.blocks.size() && left > 0; ++n) {
              Recompute& now = next.decision.ways[kind.blocks[first ? n : kind.blocks.size() - 1 - n]];
              if (now != way) now = way, --left;
            }
            if (left < m) better |= take(std::move(next));
          }
        }
      }
    }
    return better;
  }

  // `operators`, or those of them that are in slices, are `mode` in one piece.
  bool set(const std::vector<int>& operators, Mode mode, bool only_slices) {
    Candidacy next = here_.plan;
    bool changed = false;
    for (const int i : operators) {
      const auto& list = rehearsal_.candidates(i, rehearsal_.way_of(i, next.decision));
      int& choice = next.decision.choices[i];
      if (choice < 0 || (only_slices && list[choice].granularity == 1)) continue;
      const auto to = std::find_if(list.begin(), list.end(),
                                   [&](const Candidate& c) { return c.mode == mode && c.granularity == 1; });
      if (to == list.end() || to - list.begin() == choice) continue;
      choice = static_cast<int>(to - list.begin());
      changed = true;
    }
    return changed && take(std::move(next));
  }

  // Makes it fit, and plays it: as it is, and with what memory is left put to use.
  bool take(Candidacy next) {
    if (!more()) return false;
    const Kinds& kinds = rehearsal_.kinds();
    const Request& request = rehearsal_.request();
    const int64_t transient = largest_transient(kinds, next.decision);
    const int64_t room = limit() - request.reserve_bytes(transient);
    std::vector<int64_t> phases = phase_bytes(rehearsal_.model(), request, kinds, next.decision, next.batch);
    const Chooser chooser(rehearsal_.model(), request, kinds, next.batch, transient, false);
    if (!chooser.repair(next.decision, phases, room)) return false;
    bool better = play(next);
    const std::vector<double> prices(phases.size(), 1.0 / static_cast<double>(phases.size()));
    chooser.quicken(next.decision, phases, room, prices);
    return play(next) || better;
  }

  bool play(const Candidacy& next) {
    if (!more() || known(next) || rehearsal_.peak_bytes(next) > limit()) return false;
    const Played played{next, rehearsal_.step_ps(next), here_.seed};
    if (!played.faster_than(here_)) return false;
    here_ = played;
    return true;
  }

  Rehearsal& rehearsal_;
  const int64_t last_;
  std::vector<std::vector<int>> alike_;  // operators with a choice: by kind
  std::vector<int> open_;                // all of them
  std::set<std::vector<int64_t>> known_;
  std::vector<Played> seeds_;
  Played here_;
};

}  // namespace

Polished polish(Rehearsal& rehearsal, const std::vector<Candidacy>& seeds, int64_t plays) {
  Polisher polisher(rehearsal, plays);
  for (size_t n = 0; n < seeds.size(); ++n) polisher.add(seeds[n], n);
  return polisher.run();
}

}  // namespace osdp::search
