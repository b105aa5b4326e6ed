#include "search/planner/selection.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <stdexcept>

#include "search/heuristics/rehearsal.hpp"
#include "search/planner/step_search.hpp"

namespace osdp::search {
namespace {

// Weights of communication whose objective may be proven, as multiples of the machine's: the first whose
// optimum the plan is near enough to.
constexpr double kWeights[] = {1, 0.3, 0.1, 0.03, 0.01, 0};

// A plan with its simulated step; plan.step_ps is the objective.
struct Seed {
  Found plan;
  PlayedStep played;

  bool faster_than(const Seed& other) const {
    return faster(played.step_ps, plan.batch, other.played.step_ps, other.plan.batch);
  }
};

// Whether the objective of `plan` is worse than that of `best` by at most the fraction `replay`.
bool near(const Found& plan, const Found& best, double replay) {
  const auto per_sample = [](const Found& f) {
    return static_cast<double>(f.step_ps) / static_cast<double>(f.batch.samples());
  };
  return !best.faster_than(plan) || per_sample(plan) <= per_sample(best) * (1 + replay);
}

class Selection {
 public:
  Selection(Searches& searches, const Request& problem, const PeakLimit& limit)
      : searches_(searches), problem_(problem), limit_(limit) {}

  Answer run() {
    if (problem_.paper() || problem_.device.ranks == 1) return by_objective(problem_);
    if (searches_.wish().replay <= 0) return limit_.of_sum() ? by_objective(problem_) : any();
    const SteppedPlan fastest = search_step(searches_, problem_, limit_);
    if (!fastest.found) return limit_.of_sum() ? by_objective(problem_) : infeasible({});
    Answer a = proven(fastest.plan);
    a.step_bound_s_per_sample = fastest.lower_bound_s_per_sample;
    return a;
  }

  // The optimal plan by the objective if its own peak keeps the limit, else the one with the smallest peak.
  // Where no sum keeps it, the optimum under the smallest limit of the sum.
  Answer any() {
    Request problem = problem_;
    problem.find_smallest = true;
    Answer a = by_objective(problem);
    if (!a.feasible && a.smallest_limit_bytes > 0) {
      problem.limit_bytes = a.smallest_limit_bytes;
      a = by_objective(problem);
    }
    if (a.feasible && limit_.spare(a.peak_bytes, a.largest_peak_bytes) >= 0) return a;
    const LeastPeak& least = searches_.least(problem_.batches);
    if (!least.found) return a;
    Rehearsal& own = player(problem_.device.exposed);
    return answer(own, {{}, least.plan.peak_bytes}, {least.plan, own.play(candidacy(least.plan))}, false);
  }

  // The optimal plan by the objective, under a limit of the sum.
  Answer by_objective(const Request& problem) {
    Rehearsal& own = player(problem_.device.exposed);
    const Proof proof{searches_.run(problem), problem.limit_bytes};
    if (!proof.schedule.feasible) return infeasible(proof.schedule);
    const Found plan = found_of(proof.schedule);
    PlayedStep played;
    if (problem_.paper()) {
      played.step_ps = plan.step_ps;
    } else {
      played = own.play(candidacy(plan));
    }
    return answer(own, proof, {plan, played}, proof.schedule.optimal);
  }

 private:
  // The plan, or the objective's optimum if that is faster, with the proof of the objective.
  Answer proven(Found plan) {
    const int64_t sum_limit = std::max(problem_.limit_bytes, plan.peak_bytes);
    const double own = problem_.device.exposed;
    for (const double weight : kWeights) {
      const double exposed = weight == 1 ? own : (own > 0 ? own : 1) * weight;
      plan.step_ps = player(exposed).objective_ps(candidacy(plan));
      Proof proof{searches_.run(problem_at(exposed, sum_limit)), sum_limit};
      if (!proof.schedule.feasible) {  // interrupted before the first plan
        return fastest_near(player(exposed), proof, plan, plan);
      }
      const Found best = found_of(proof.schedule);
      if (weight == kWeights[std::size(kWeights) - 1] || near(plan, best, searches_.wish().replay))
        return fastest_near(player(exposed), proof, best, plan);
    }
    throw std::logic_error("select_plan: no weight is the last");
  }

  struct Player {
    Request request;
    Rehearsal rehearsal;
    Player(const Planner& planner, Request r, int64_t most_bytes)
        : request(std::move(r)), rehearsal(request, planner.player(), most_bytes) {}
  };

  // A search and the limit of the sum that it kept.
  struct Proof {
    Schedule schedule;
    int64_t sum_limit_bytes = 0;
  };

  Request problem_at(double exposed, int64_t sum_limit_bytes) const {
    Request request = problem_;
    request.device.exposed = exposed;
    request.limit_bytes = sum_limit_bytes;
    return request;
  }

  Answer infeasible(const Schedule& found) const {
    Answer none;
    none.limit_bytes = none.sum_limit_bytes = problem_.limit_bytes;
    none.smallest_limit_bytes = found.smallest_limit_bytes;
    return none;
  }

  // Evaluates plans of the problem, with this weight of communication in the objective.
  Rehearsal& player(double exposed) {
    std::unique_ptr<Player>& known = players_[exposed];
    if (!known)
      known = std::make_unique<Player>(searches_.planner(), problem_at(exposed, problem_.limit_bytes),
                                       limit_.most_bytes());
    return known->rehearsal;
  }

  int64_t spare(Rehearsal& own, const Found& plan) const {
    return limit_.spare(plan.peak_bytes, own.largest_peak_bytes(candidacy(plan)));
  }

  // `plan`, whose step keeps the limit, or `best`, the optimum of `proof`, if that keeps it and is no slower
  // in simulation. `own` evaluates the same objective.
  Answer fastest_near(Rehearsal& own, const Proof& proof, const Found& best, const Found& plan) const {
    const bool best_keeps = spare(own, best) >= 0;
    const Seed optimum{best, own.play(candidacy(best))};
    Seed fastest{plan, own.play(candidacy(plan))};
    if (best_keeps && !fastest.faster_than(optimum)) fastest = optimum;
    const bool optimal = proof.schedule.optimal && !best.faster_than(fastest.plan);
    Answer a = answer(own, proof, fastest, optimal);
    a.proven = proof.schedule.optimal && best_keeps;
    return a;
  }

  Answer answer(Rehearsal& own, const Proof& proof, const Seed& chosen, bool optimal) const {
    const Candidacy decided = candidacy(chosen.plan);
    Answer a;
    a.feasible = true, a.optimal = optimal, a.proven = proof.schedule.optimal;
    a.plan = own.plain(decided);
    a.step_ps = chosen.plan.step_ps, a.peak_bytes = chosen.plan.peak_bytes, a.played = chosen.played;
    a.largest_peak_bytes = own.largest_peak_bytes(decided);
    a.exposed = own.request().device.exposed;
    a.prices = proof.schedule.prices;
    a.lower_bound_s_per_sample = proof.schedule.lower_bound_s_per_sample;
    a.limit_bytes = problem_.limit_bytes, a.sum_limit_bytes = proof.sum_limit_bytes;
    return a;
  }

  Searches& searches_;
  const Request problem_;
  const PeakLimit& limit_;
  std::map<double, std::unique_ptr<Player>> players_;  // by weight of communication
};

}  // namespace

Answer select_plan(Searches& searches, const Request& problem, const PeakLimit& limit) {
  return Selection(searches, problem, limit).run();
}

}  // namespace osdp::search
