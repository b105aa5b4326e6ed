// Note [Exact search]
// 1. Equal operators become one group with a multiplicity, dominated options go (groups).
// 2. The Lagrangian relaxation gives a lower bound, the price of memory lambda and a feasible plan (bound);
//    the lattice of costs may raise the bound (lattice). Often they meet, and that is all.
// 3. A plan's time is at least the bound + the sum of its reduced costs, so a plan that may be better than
// the
//    incumbent has little of it: most options of most groups are out, what is left of a group are items
//    (items).
// 4. Two beams, a narrow and a wide one, find good plans: lists of partial sums, cut to the cheapest (round).
//    Where nothing had to be cut it was a whole round.
// 5. Rounds (round): first only plans up to a small distance above the bound, then wider. A round that ends
//    proves the bound up to its distance, so the work is about what the true gap needs, however bad the first
//    incumbent was.
#include "search/knapsack/context.hpp"
#include "search/knapsack/core_search.hpp"
#include "search/knapsack/lattice_bound.hpp"
#include "search/knapsack/solve.hpp"

namespace osdp::search {
namespace {

constexpr size_t kWider = 40;  // times as many sums has the second beam

void close_gap(Context& c) {
  const Lattice lattice = make_lattice(c.groups);
  c.step_ps = std::max<int64_t>(lattice.a, 1);
  c.raise_bound(lattice_bound(lattice, c.limit_bytes, c.bound_ps, c.relaxed.multiplier));
  if (c.good_enough()) return;
  c.reduced = reduced_costs(c.groups, c.relaxed.multiplier);
  for (int shift = 8; !c.good_enough() && shift >= 0; shift -= 2) {
    // The first distance is of the gap before the beam: what the beam found makes it exact at once, mostly.
    const int64_t threshold =
        std::min(c.best.time_ps - c.step_ps, c.bound_ps + ((c.best.time_ps - c.bound_ps) >> shift));
    bool complete = false;
    for (size_t beam = c.tuning.beam; shift == 8 && !complete && beam <= kWider * c.tuning.beam;
         beam *= kWider) {
      complete = search_core(c, threshold, beam, true);
      if (c.watch.stopped()) return;
      c.raise_bound(c.bound_ps);
      if (c.good_enough()) return;
    }
    if (!complete && !search_core(c, threshold, c.tuning.chunk, false)) return;
    c.raise_bound(std::min(c.best.time_ps, threshold + 1));
  }
}

}  // namespace

Solution solve_exact(const ProblemView& problem, const Budget& budget, const Tuning& tuning) {
  if (tuning.beam < 1 || tuning.chunk < 1) throw InvalidProblem("beam and chunk must be at least 1");
  if (problem.limit_bytes < 0) validate(problem);  // which throws; make_groups() does the rest of it
  Stopwatch watch(budget);
  const std::vector<Group> groups = make_groups(problem);
  const Relaxation relaxed = relax(groups, hull_edges(groups), problem.limit_bytes);
  Context c{problem.limit_bytes, groups, relaxed, watch, tuning, {}, {}, {}, 1, 0, budget.gap};
  c.statistics.groups = static_cast<int64_t>(groups.size());
  for (const auto& g : groups) c.statistics.options_left += static_cast<int64_t>(g.options.size());
  Solution s;
  s.smallest_limit_bytes = relaxed.smallest_limit_bytes;
  s.multiplier = relaxed.multiplier;
  if (relaxed.feasible) {
    c.best = {relaxed.time_ps, relaxed.memory_bytes, relaxed.counts};
    c.bound_ps = relaxed.lower_bound_ps;
    if (!c.good_enough()) close_gap(c);
    s.lower_bound_ps = c.bound_ps;
    s.time_ps = c.best.time_ps;
    s.memory_bytes = c.best.memory_bytes;
    s.choices = spread_choices(problem.operators.size(), groups, c.best.counts);
    s.status = c.proven() ? Status::Optimal : Status::Feasible;
  }
  c.statistics.seconds = watch.seconds();
  s.statistics = c.statistics;
  return s;
}

}  // namespace osdp::search
