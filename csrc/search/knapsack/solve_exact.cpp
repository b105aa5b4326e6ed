// Note [Exact search]
// 1. Equal operators become one group with a multiplicity; dominated options are removed (groups).
// 2. The Lagrangian relaxation gives a lower bound, the price of memory lambda and a feasible plan (bound);
//    the lattice of costs may raise the bound (lattice). Often bound and plan meet, and the search ends.
// 3. A plan's time is at least the bound plus the sum of its reduced costs, so a plan better than the
//    incumbent has a small sum. That fixes most options of most groups; the remaining assignments of a group
//    are its items (items).
// 4. Two beam searches, a narrow and a wide one, find good plans: lists of partial sums are truncated to
//    those of least reduced cost (round). If nothing was truncated, the beam search was a complete round.
// 5. Rounds (round): first only plans up to a small distance above the bound, then larger ones. A completed
//    round proves the bound up to its distance, so the work depends on the true gap, not on the quality of
//    the first incumbent.
#include "search/knapsack/context.hpp"
#include "search/knapsack/lattice_bound.hpp"
#include "search/knapsack/solve.hpp"

namespace osdp::search {
namespace {

constexpr size_t kWider = 40;  // width of the second beam as a multiple of the first

void close_gap(Context& c) {
  const Lattice lattice = make_lattice(c.groups);
  c.step_ps = std::max<int64_t>(lattice.a, 1);
  c.raise_bound(lattice_bound(lattice, c.limit_bytes, c.bound_ps, c.relaxed.multiplier));
  if (c.good_enough()) return;
  c.reduced = reduced_costs(c.groups, c.relaxed.multiplier);
  for (int shift = 8; !c.good_enough() && shift >= 0; shift -= 2) {
    // The first distance is a fraction of the gap before the beam search, whose plan usually makes that round
    // sufficient.
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
  if (problem.limit_bytes < 0) validate(problem);  // throws; make_groups() checks everything else
  Stopwatch watch(budget);
  const std::vector<Group> groups = make_groups(problem);
  const Relaxation relaxed = relax(groups, hull_edges(groups), problem.limit_bytes);
  Context c{problem.limit_bytes, groups, relaxed, watch, tuning, {}, {}, {}, 1, 0, budget.gap};
  c.statistics.groups = static_cast<int64_t>(groups.size());
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
