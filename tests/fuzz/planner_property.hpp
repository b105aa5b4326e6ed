// What must hold of the planner for any request: it is refused with InvalidProblem, or answered, and then the
// checkers agree with the answer. Shared by the fuzzer (fuzz_planner.cpp) and the test that always runs
// (tests/cpp/test_requests.cpp). Memory errors and undefined behaviour are for the sanitizers to find.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "planner_request.hpp"
#include "search/branch/schedule.hpp"
#include "search/certificate/knapsack_certificate.hpp"
#include "search/certificate/plan_certificate.hpp"
#include "search/knapsack/solve.hpp"
#include "search/problem/validate.hpp"

namespace osdp::search {

inline void must(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "planner: does not hold: %s\n", what.c_str());
  std::abort();
}

struct Answered {
  int refused = 0, answered = 0, plans = 0;
};

// A schedule's plan as the checker takes it.
inline PlainPlan plain(const Model& model, const Request& request, const Found& found) {
  PlainPlan plan{found.batch, {}, found.decision.ways};
  for (size_t i = 0; i < model.operators.size(); ++i) {
    const Operator& op = model.operators[i];
    const Recompute way = op.block < 0 ? Recompute::None : found.decision.ways[static_cast<size_t>(op.block)];
    auto& choice = plan.choices.emplace_back();
    const int picked = found.decision.choices[i];
    if (picked < 0) continue;
    const Candidate c = candidates(op, request.device, request.space, way).at(static_cast<size_t>(picked));
    choice = {c.mode, c.granularity, c.sharded_slices, c.split};
  }
  return plan;
}

// The search rounds its bounds down once a sample, for all operators and for each recomputed block, and by 4
// ps for each of an operator's 12 collectives and 4 of each of its slices, of which a request has 4 at most:
// where nothing takes time, a bound is below 0 by so much.
inline int64_t rounded_down(const Model& model, Batch batch) {
  return batch.samples() * static_cast<int64_t>(model.blocks.size() + 1) +
         4 * (12 + 4 * 4) * batch.accumulation * static_cast<int64_t>(model.operators.size() + 1);
}

// Prices prove no more than the time of a plan that fits.
inline void check_found(const Model& model, Request request, const Found& found, Draws& d) {
  const PlainPlan plan = plain(model, request, found);
  const std::vector<BatchProof> proof = draw_proof(d, model, plan.batch);
  const int64_t rounding = rounded_down(model, plan.batch);
  if (!request.paper()) {
    if (!request.space.shares) return;
    const int64_t least = bound_of_plan_ps(model, request, plan);
    must(least <= found.step_ps + rounding, "the checker's bound of a plan, " + std::to_string(least) +
                                                " ps, is above the search's " +
                                                std::to_string(found.step_ps));
    // Of what the largest peak may be, the search was given all.
    if (!request.moves_nothing()) request.limit_bytes += request.limit_bytes / 99 + 1;
    if (request.limit_bytes > kMostBytes) return;  // no limit of a request
  }
  const std::string wrong = check_plan(model, request, plan, found.step_ps, found.peak_bytes);
  must(wrong.empty(), wrong);
  request.batches = {plan.batch};  // a bound of these alone is sharper
  const int64_t bound = proven_bound_ps(model, request, plan.batch.samples(), proof, d.number(1, 1 << 20));
  const int64_t own = request.paper() ? found.step_ps : bound_of_plan_ps(model, request, plan);
  must(bound <= own + rounding,
       "a bound of " + std::to_string(bound) + " ps is above a plan of " + std::to_string(own));
}

inline void try_schedule(Draws& d, Answered& a) {
  const Model model = draw_model(d);
  const Request request = draw_request(d);
  Budget budget;
  budget.time_limit_s = 0.02;
  const Schedule s = schedule(model, request, budget);
  ++a.answered;
  if (!s.feasible) {
    must(s.smallest_limit_bytes == 0 || s.smallest_limit_bytes > request.limit_bytes || request.depth_first,
         "the smallest limit is above the one under which nothing fits");
    return;
  }
  ++a.plans;
  check_found(model, request, {s.batch, s.decision, s.step_ps, s.peak_bytes}, d);
  for (const Found& f : s.runners_up) check_found(model, request, f, d);
  const double per_sample = static_cast<double>(s.step_ps) / static_cast<double>(s.batch.samples());
  const double least = request.space.shares ? -static_cast<double>(rounded_down(model, s.batch)) : 0;
  must(s.lower_bound_s_per_sample * 1e12 >= least, "the search's bound is a time");
  must(s.lower_bound_s_per_sample <= per_sample * 1e-12 + 1e-9 * std::abs(per_sample) * 1e-12,
       "the search's bound is not above its plan");
}

inline void try_check_plan(Draws& d, Answered& a) {
  const Model model = draw_model(d);
  const Request request = draw_request(d);
  const PlainPlan plan = draw_plan(d, model);
  int64_t time = d.number(0, 500000), bytes = d.number(0, 4000);
  const auto wrong_of = [&] { return check_plan(model, request, plan, time, bytes); };
  if (wrong_of().empty()) ++a.plans;
  proven_bound_ps(model, request, d.number(1, 9), draw_proof(d, model, plan.batch), d.number(1, 1 << 20));
  ++a.answered;
  // The true figures, which the checker tells one after the other, hold.
  for (int round = 0; round < 2; ++round) {
    const std::string wrong = wrong_of();
    if (const size_t at = wrong.find("takes "); at != std::string::npos)
      time = std::stoll(wrong.substr(at + 6));
    if (const size_t at = wrong.find("holds ");
        at != std::string::npos && wrong.find("over the limit") == std::string::npos)
      bytes = std::stoll(wrong.substr(at + 6));
  }
  const std::string wrong = wrong_of();
  must(wrong.find("takes ") == std::string::npos && wrong.find(", not ") == std::string::npos, wrong);
}

inline void check_played(const Step& step, Draws& d, Answered& a) {
  const PlayedStep played = play(step, d.number(0, 1500));
  ++a.answered, ++a.plans;
  must(played.step_ps ==
           played.only_computing_ps + played.both_ps + played.only_communicating_ps + played.optimizer_ps,
       "the parts of a step add up to it");
}

inline void try_simulate(Draws& d, Answered& a) {
  const Model model = draw_model(d);
  const Request request = draw_request(d);
  PlainPlan plan = draw_plan(d, model);
  const auto units = draw_units(d, model);
  plan.prefetch = d.number(0, 3);
  const Collective delay{d.real(1e-9, 9), d.real(1e-10, 9)};
  validate(model), validate(request), validate(delay);
  check_played(step_of(model, request, plan, units, delay), d, a);
}

inline void try_play(Draws& d, Answered& a) { check_played(draw_step(d), d, a); }

inline void try_solve(Draws& d, Answered& a) {
  const Problem problem = draw_problem(d);
  Tuning tuning;
  tuning.chunk = 1 + d.below(1000), tuning.beam = d.below(100);
  Budget budget;
  budget.time_limit_s = 0.02, budget.gap = d.real(0.01, 2);
  const Solution s = solve_exact(problem, budget, tuning);
  ++a.answered;
  const Solution slow = solve_dfs(problem, budget);
  must((s.status == Status::Infeasible) == (s.smallest_limit_bytes > problem.limit_bytes), "feasible or not");
  if (s.status == Status::Infeasible) return;
  ++a.plans;
  for (const Solution* x : {&s, &slow}) {
    if (x->choices.empty()) continue;
    const int64_t proven = std::min(proven_lower_bound(problem, x->multiplier), x->time_ps);
    must(proven <= x->time_ps && x->lower_bound_ps <= x->time_ps, "bounds are below plans");
    const std::string wrong =
        check(problem, x->choices, {x->time_ps, x->memory_bytes, proven, x->multiplier});
    must(wrong.empty(), wrong);
  }
  if (slow.status == Status::Optimal) {
    must(s.lower_bound_ps <= slow.time_ps && slow.time_ps <= s.time_ps,
         "the exact search agrees with depth-first");
    must(s.status != Status::Optimal || s.time_ps == slow.time_ps, "both found the optimum");
  }
}

// Reads bytes as a request of one kind, and aborts where something that must hold does not.
inline void try_request(std::span<const uint8_t> bytes, Answered& a) {
  Draws d(bytes);
  try {
    switch (d.below(8)) {
      case 0:
        return try_check_plan(d, a);
      case 1:
        return try_simulate(d, a);
      case 2:
        return try_play(d, a);
      case 3:
        return try_solve(d, a);
      default:
        return try_schedule(d, a);
    }
  } catch (const InvalidProblem& e) {
    ++a.refused;
    must(*e.what() != 0, "a refusal says why");
  }
}

}  // namespace osdp::search
