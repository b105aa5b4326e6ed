#include "search/planner/selection.hpp"

#include <algorithm>
#include <map>
#include <memory>

#include "search/heuristics/polish.hpp"
#include "search/planner/rivals.hpp"

namespace osdp::search {
namespace {

constexpr double kCoarseGap = 0.003;         // rivals' searches end at this gap
constexpr int64_t kCoarseWork = 50'000'000;  // steps of each rival's search
constexpr size_t kBeside = 2;                // runners-up of each search that are simulated
constexpr int kMostRaises = 6;               // of the limit of the sum: Note [The whole limit]
constexpr size_t kPolished = 6;              // number of plans that are polished
constexpr size_t kOverLimit = 3;             // number of plans over the limit that polishing changes
// Limits of polishing: the number of operators over all simulated steps, and the number of steps.
constexpr int64_t kPlayedOperators = 160'000, kFewestPlays = 32, kMostPlays = 3200;
constexpr double kOvertime = 0.05;  // fraction of the time granted to polishing if the searches took all

Found found_of(const Schedule& s) {
  return {s.batch, s.transient_bytes, s.decision, s.step_ps, s.peak_bytes};
}

Candidacy candidacy(const Found& found) { return {found.batch, found.decision}; }

// A plan with its simulated step; plan.step_ps is the objective with the weight of communication `exposed`.
struct Seed {
  Found plan;
  double exposed = 1;
  size_t of = 0;  // index of the search that found it
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
  Selection(Searches& searches, const Request& problem, const WholeLimit& limit)
      : searches_(searches), problem_(problem), limit_(limit) {}

  Answer run() {
    if (problem_.paper() || searches_.wish().replay <= 0 || problem_.device.ranks == 1 || !search_rivals())
      return by_objective();
    std::vector<Found> plans = fastest(seeds_, kPolished);
    const Seed& first = seeds_.front();
    std::vector<double> weights{first.exposed};
    if (!searches_.interrupted() && searches_.left_s() > -kOvertime * searches_.limit_s()) {
      std::vector<Found> all = plans;
      for (const Found& over : fastest(over_limit_, kOverLimit)) all.push_back(over);
      plans.insert(plans.begin(), polished(player(first.exposed), all));
      weights = near_weights(plans.front());
    }
    // The proof covers all plans whose sum is at most that of the fastest.
    const int64_t sum_limit = std::max(problem_.limit_bytes, plans.front().peak_bytes);
    for (const double exposed : weights) {
      if (searches_.interrupted()) break;
      const Proof proof{searches_.run(problem_at(exposed, sum_limit)), sum_limit};
      if (!proof.schedule.feasible) break;
      const Found best = found_of(proof.schedule);
      if (exposed == weights.back() || near(weighed(plans.front(), exposed), best, searches_.wish().replay))
        return fastest_near(player(exposed), proof, best, plans);
    }
    Proof proof = found_[first.of];
    proof.schedule.optimal = false;
    return fastest_near(player(first.exposed), proof, first.plan, plans);
  }

  // The optimal plan by the objective.
  Answer by_objective() {
    Rehearsal& own = player(problem_.device.exposed);
    SumLimits sum_limits(limit_, problem_.limit_bytes, kMostRaises);
    Proof kept;
    for (bool again = true; again;) {
      const int64_t sum_limit = sum_limits.now_bytes();
      Schedule s = searches_.run(problem_at(problem_.device.exposed, sum_limit));
      if (!s.feasible) {
        if (!kept.schedule.feasible) return infeasible(s);
        break;
      }
      const int64_t spare = this->spare(own, found_of(s));
      if (!kept.schedule.feasible || (spare >= 0 && (s.optimal || !s.prices.empty())))
        kept = {std::move(s), sum_limit};
      again = !searches_.over() && sum_limits.next(spare);
    }
    const Found plan = found_of(kept.schedule);
    PlayedStep played;
    if (problem_.paper()) {
      played.step_ps = plan.step_ps;
    } else {
      played = own.play(candidacy(plan));
    }
    return answer(own, kept, {plan, problem_.device.exposed, 0, played}, kept.schedule.optimal);
  }

 private:
  struct Player {
    Request request;
    Rehearsal rehearsal;
    Player(const Planner& planner, Request r) : request(std::move(r)), rehearsal(request, planner.player()) {}
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
      known = std::make_unique<Player>(searches_.planner(), problem_at(exposed, problem_.limit_bytes));
    return known->rehearsal;
  }

  // False if no plan was found whose step keeps the limit.
  bool search_rivals() {
    for (const Rival& rival : kRivals) {
      std::optional<Request> request = request_of(problem_, rival);
      if (!request) continue;
      request->find_smallest = false;
      SumLimits sum_limits(limit_, request->limit_bytes, rival.of_limit < 1 ? 0 : kMostRaises);
      for (bool again = true; again;) {
        request->limit_bytes = sum_limits.now_bytes();
        Schedule s = searches_.run(*request, kCoarseGap, kCoarseWork);
        if (!s.feasible) {
          if (found_.empty()) return false;
          break;
        }
        const int64_t spare = add_seeds(s, request->device.exposed);
        if (!rival.whole_problem()) s.lower_bound_s_per_sample = 0;
        found_.push_back({std::move(s), request->limit_bytes});
        if (searches_.over()) return !seeds_.empty();
        again = sum_limits.next(spare);
      }
    }
    return !seeds_.empty();
  }

  // Sorts `seeds` by the simulated step and returns the first distinct plans, `most` of them at most.
  static std::vector<Found> fastest(std::vector<Seed>& seeds, size_t most) {
    std::stable_sort(seeds.begin(), seeds.end(),
                     [](const Seed& a, const Seed& b) { return a.faster_than(b); });
    std::vector<Found> plans;
    for (const Seed& seed : seeds) {
      const auto same = [&](const Found& plan) {
        return plan.batch == seed.plan.batch && plan.decision == seed.plan.decision;
      };
      if (plans.size() < most && std::none_of(plans.begin(), plans.end(), same)) plans.push_back(seed.plan);
    }
    return plans;
  }

  // See WholeLimit.
  int64_t spare(Rehearsal& own, const Found& plan) const {
    return limit_.spare(plan.peak_bytes, own.largest_peak_bytes(candidacy(plan), plan.peak_bytes));
  }

  // Adds a rival's plans, evaluated as plans of the problem with the rival's weight of communication. Returns
  // the memory that its best one leaves.
  int64_t add_seeds(const Schedule& s, double exposed) {
    Rehearsal& own = player(exposed);
    const auto add = [&](Found plan) {
      const Candidacy decided = candidacy(plan);
      plan.step_ps = own.objective_ps(decided), plan.peak_bytes = own.peak_bytes(decided);
      const int64_t left = spare(own, plan);
      (left >= 0 ? seeds_ : over_limit_).push_back({plan, exposed, found_.size(), own.play(decided)});
      return left;
    };
    const int64_t left = add(found_of(s));
    for (size_t k = 0; k < std::min(kBeside, s.runners_up.size()); ++k) add(s.runners_up[k]);
    return left;
  }

  Found polished(Rehearsal& own, const std::vector<Found>& plans) const {
    const auto operators = static_cast<int64_t>(own.model().operators.size());
    const int64_t plays =
        std::clamp(kPlayedOperators / std::max<int64_t>(1, operators), kFewestPlays, kMostPlays);
    std::vector<Candidacy> seeds;
    for (const Found& plan : plans) seeds.push_back(candidacy(plan));
    const auto left = [&](const Candidacy& plan) {
      const int64_t sum = own.peak_bytes(plan);
      return limit_.spare(sum, own.largest_peak_bytes(plan, sum));
    };
    return polish(own, seeds, plays, left).plan;
  }

  // The plan with its objective for another weight of communication.
  Found weighed(Found plan, double exposed) {
    plan.step_ps = player(exposed).objective_ps(candidacy(plan));
    return plan;
  }

  // The first seed's weight of communication and the smaller ones, descending, for which the objective of
  // `plan` is near enough to that of all seeds; not empty.
  std::vector<double> near_weights(const Found& plan) {
    std::map<double, Found, std::greater<>> best;
    for (const Seed& seed : seeds_) {
      const auto [at, fresh] = best.try_emplace(seed.exposed, seed.plan);
      if (!fresh && seed.plan.faster_than(at->second)) at->second = seed.plan;
    }
    std::vector<double> weights;
    for (const auto& [exposed, least] : best) {
      if (exposed <= seeds_.front().exposed && near(weighed(plan, exposed), least, searches_.wish().replay))
        weights.push_back(exposed);
    }
    if (weights.empty()) weights.push_back(seeds_.front().exposed);
    return weights;
  }

  // The fastest in simulation of `plans`, whose steps keep the limit, and `best`, the optimum of `proof`,
  // among those near `best` and within the proof's limit of the sum. `own` evaluates the same objective. If
  // the step of `best` does not keep the limit, it is returned only if there is no other plan.
  Answer fastest_near(Rehearsal& own, const Proof& proof, const Found& best,
                      const std::vector<Found>& plans) const {
    Seed fastest{best, 0, 0, own.play(candidacy(best))};
    const bool best_keeps = spare(own, best) >= 0;
    bool optimal = proof.schedule.optimal, any = best_keeps;
    for (const Found& plan : plans) {
      if (plan.peak_bytes > proof.sum_limit_bytes) continue;
      Seed seed{plan, 0, 0, own.play(candidacy(plan))};
      seed.plan.step_ps = own.objective_ps(candidacy(plan));
      if (any && (!seed.faster_than(fastest) || !near(seed.plan, best, searches_.wish().replay))) continue;
      optimal = proof.schedule.optimal && !best.faster_than(seed.plan);
      any = true;
      fastest = seed;
    }
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
    a.largest_peak_bytes = own.largest_peak_bytes(decided, a.peak_bytes);
    a.exposed = own.request().device.exposed;
    a.prices = proof.schedule.prices;
    a.lower_bound_s_per_sample = proof.schedule.lower_bound_s_per_sample;
    a.limit_bytes = problem_.limit_bytes, a.sum_limit_bytes = proof.sum_limit_bytes;
    return a;
  }

  Searches& searches_;
  const Request problem_;
  const WholeLimit& limit_;
  std::map<double, std::unique_ptr<Player>> players_;  // by weight of communication
  std::vector<Proof> found_;                           // of the rivals that found a plan
  std::vector<Seed> seeds_, over_limit_;               // by whether their step keeps the limit
};

}  // namespace

Answer select_plan(Searches& searches, const Request& problem, const WholeLimit& limit) {
  return Selection(searches, problem, limit).run();
}

Answer optimum(Searches& searches, const Request& problem, const WholeLimit& limit) {
  return Selection(searches, problem, limit).by_objective();
}

}  // namespace osdp::search
