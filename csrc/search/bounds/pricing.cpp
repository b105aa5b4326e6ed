#include "search/bounds/pricing.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace osdp::search {

Pricing::Pricing(const Model& model, const Request& request, const EquivalenceClasses& classes, Batch batch,
                 bool memory_alone)
    : classes_(classes),
      batch_(batch),
      paper_(request.paper()),
      operators_(model.operators.size()),
      phases_(paper_ ? 1 : operators_),
      blocks_(model.blocks.size()) {
  for (const EquivalenceClass& cls : classes.classes) {
    ways_.push_back(ways_of(cls, request, batch, memory_alone));
    possible_ &= has_options(cls, ways_.back());
  }
}

Decision Pricing::cheapest(const std::vector<double>& prices) const {
  const size_t n = operators_;
  std::vector<double> by_phase = prices;
  by_phase.resize(n, 0);  // the paper's sum is priced as a first phase, in which an option counts in full
  const PhasePrices priced(by_phase), alike(std::vector<double>(n, 1));
  using Cost = std::pair<double, double>;  // at the prices; of equal ones, over all phases
  const auto both = [&](const auto& cost) { return Cost{cost(priced), cost(alike)}; };
  Decision decision{std::vector<int>(n, -1), std::vector<Recompute>(blocks_, Recompute::None)};
  std::vector<int> picked, best_picked;
  for (size_t k = 0; k < classes_.classes.size(); ++k) {
    const EquivalenceClass& cls = classes_.classes[k];
    const Way* best = nullptr;
    for (size_t m = 0; m < cls.instances.size(); ++m) {
      const auto& at = cls.instances[m];
      const size_t first = at.front(), end = at.back() + 1;
      // Consecutive instances with no priced phase between them choose alike.
      if (m == 0 || (!paper_ && priced.of(cls.instances[m - 1].front(), end) != 0)) {
        best = nullptr;
        Cost least;
        for (const Way& way : ways_[k]) {
          const bool again = way.way != Recompute::None;
          Cost cost = both([&](const PhasePrices& p) {
            return p.all() * static_cast<double>(way.in_flight) +
                   p.from(first) * static_cast<double>(way.input);
          });
          cost.first += static_cast<double>(way.time);
          const auto add = [&](const Cost& more) { cost.first += more.first, cost.second += more.second; };
          picked.assign(at.size(), -1);
          for (size_t p = 0; p < at.size(); ++p) {
            const size_t i = at[p];
            const auto saved = static_cast<double>(cls.slots[p].saved(batch_.size));
            add(both([&](const PhasePrices& x) { return x.of(i, again ? end : n) * saved; }));
            Cost lowest;
            for (const SlotOption& o : way.slots[p]) {
              Cost c = both([&](const PhasePrices& x) { return memory_cost(o, x, i, end); });
              c.first += static_cast<double>(o.time);
              if (picked[p] < 0 || c < lowest) picked[p] = o.candidate, lowest = c;
            }
            add(lowest);
          }
          if (best == nullptr || cost < least) best = &way, least = cost, best_picked = picked;
        }
      }
      for (size_t p = 0; p < at.size(); ++p) decision.choices[at[p]] = best_picked[p];
      if (cls.block) decision.ways[cls.blocks[m]] = best->way;
    }
  }
  return decision;
}

// One operator at its position, with its options under the plan's recomputation. Its memory differs between
// phases before `op`, `op` itself, those up to `end`, and later ones, see Note [Phases].
struct Pricing::Place {
  size_t op, end;
  const std::vector<SlotOption>* options;
  const SlotOption* now;

  int64_t bytes(const SlotOption& o, size_t phase, bool paper) const {
    if (paper || phase < op) return o.after + (phase + static_cast<size_t>(o.left_phases) >= op ? o.left : 0);
    return o.before + (phase == op ? o.own - o.late : 0) + (phase < end ? o.held : 0);
  }
  void change(const SlotOption& o, PhaseMaxima& phases, Decision& decision, bool paper) {
    const SlotOption from = *now;
    now = &o;
    decision.choices[op] = o.candidate;
    if (paper) return phases.add(0, 1, o.after - from.after);
    phases.add(0, op, o.after - from.after);
    phases.add(op - static_cast<size_t>(from.left_phases), op, -from.left);
    phases.add(op - static_cast<size_t>(o.left_phases), op, o.left);
    phases.add(op, phases.size(), o.before - from.before);
    phases.add(op, op + 1, o.own - o.late - from.own + from.late);
    phases.add(op, end, o.held - from.held);
  }
};

std::vector<Pricing::Place> Pricing::places(const Decision& decision) const {
  std::vector<Place> found;
  for (size_t k = 0; k < classes_.classes.size(); ++k) {
    const EquivalenceClass& cls = classes_.classes[k];
    for (size_t m = 0; m < cls.instances.size(); ++m) {
      const auto& at = cls.instances[m];
      const Recompute r = cls.block ? decision.ways[cls.blocks[m]] : Recompute::None;
      const auto way =
          std::find_if(ways_[k].begin(), ways_[k].end(), [&](const Way& w) { return w.way == r; });
      if (way == ways_[k].end()) continue;
      for (size_t p = 0; p < at.size(); ++p) {
        const size_t i = at[p];
        const auto& options = way->slots[p];
        const auto now = std::find_if(options.begin(), options.end(), [&](const SlotOption& o) {
          return o.candidate == decision.choices[i];
        });
        if (now == options.end()) continue;
        const size_t end = r == Recompute::None ? i : static_cast<size_t>(at.back()) + 1;
        found.push_back({i, end, &options, &*now});
      }
    }
  }
  return found;
}

void Pricing::improve(Decision& decision, PhaseMaxima& phases, int64_t limit,
                      const std::vector<double>& prices) const {
  struct Move {
    double worth;
    Place* place;
    const SlotOption *from, *to;
  };
  std::vector<Place> all = places(decision);
  std::vector<double> by_phase = prices;
  by_phase.resize(operators_, 0);
  const PhasePrices priced(by_phase);
  std::vector<Move> moves;
  for (Place& p : all) {
    const auto price = [&](const SlotOption& o) {
      return memory_cost(o, priced, p.op, std::max(p.end, p.op + 1));
    };
    for (const SlotOption& o : *p.options) {
      if (o.time >= p.now->time) continue;
      const double faster = static_cast<double>(p.now->time - o.time);
      moves.push_back({faster / std::max(1e-3 * faster, price(o) - price(*p.now)), &p, p.now, &o});
    }
  }
  std::stable_sort(moves.begin(), moves.end(),
                   [](const Move& a, const Move& b) { return a.worth > b.worth; });
  for (const Move& v : moves) {
    Place& p = *v.place;
    if (p.now == v.to || p.now->time <= v.to->time) continue;
    if (paper_) {
      if (phases.at(0) + v.to->after - p.now->after > limit) continue;
    } else {
      if (phases.before_exceeds(p.op, limit - v.to->after + p.now->after)) continue;
      if (phases.from_exceeds(p.op, limit - v.to->before + p.now->before)) continue;
      bool fits = true;
      for (size_t j = p.op - static_cast<size_t>(v.to->left_phases); j < std::max(p.end, p.op + 1) && fits;
           ++j) {
        fits = phases.at(j) + p.bytes(*v.to, j, false) - p.bytes(*p.now, j, false) <= limit;
      }
      if (!fits) continue;
    }
    p.change(*v.to, phases, decision, paper_);
  }
}

bool Pricing::repair(Decision& decision, PhaseMaxima& phases, int64_t limit) const {
  std::vector<Place> all = places(decision);
  std::vector<std::tuple<const void*, const SlotOption*, bool>> seen;
  for (int turn = 0; turn < 100; ++turn) {
    const size_t j = phases.largest_phase();
    const int64_t over = phases.at(j) - limit;
    if (over <= 0) return true;
    Place* place = nullptr;
    const SlotOption* to = nullptr;
    double least = 0;
    seen.clear();
    for (Place& p : all) {
      // Equal operators on the same side of the phase are equivalent, so only the first is tried.
      const bool done = paper_ || j + static_cast<size_t>(p.now->left_phases) < p.op;  // its backward is over
      if (done || (j > p.op && j >= p.end)) {
        const std::tuple<const void*, const SlotOption*, bool> alike{p.options, p.now, done};
        if (std::find(seen.begin(), seen.end(), alike) != seen.end()) continue;
        seen.push_back(alike);
      }
      const int64_t bytes = p.bytes(*p.now, j, paper_);
      for (const SlotOption& o : *p.options) {
        const int64_t saved = bytes - p.bytes(o, j, paper_);
        if (saved <= 0) continue;
        // Bytes saved beyond the excess do not count.
        const double cost =
            static_cast<double>(o.time - p.now->time) / static_cast<double>(std::min(saved, over));
        if (to == nullptr || cost < least) place = &p, to = &o, least = cost;
      }
    }
    if (to == nullptr) return false;
    place->change(*to, phases, decision, paper_);
  }
  return false;
}

int64_t step_ps(const EquivalenceClasses& classes, const Decision& decision, Batch batch) {
  int128 sum = static_cast<int128>(batch.accumulation) * classes.compute_ps(batch.size);
  for (const EquivalenceClass& cls : classes.classes) {
    for (const int b : cls.blocks)
      if (decision.ways[b] != Recompute::None)
        sum += static_cast<int128>(batch.accumulation) * cls.recompute_ps(batch.size);
  }
  for_each_choice(classes, decision, [&](int, const Candidate& c) {
    sum += static_cast<int128>(batch.accumulation) * c.communication_ps + c.optimizer_ps;
  });
  if (sum > kLargestSum) throw InvalidProblem("the time of one step overflows 2^61");
  return static_cast<int64_t>(sum);
}

}  // namespace osdp::search
