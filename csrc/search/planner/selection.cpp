// See Note [Which objective is proven] in planner/planner.hpp.
#include <algorithm>
#include <map>
#include <memory>

#include "search/heuristics/polish.hpp"
#include "search/planner/rivals.hpp"
#include "search/planner/searches.hpp"

namespace osdp::search {
namespace {

constexpr double kCoarseGap = 0.003;         // rivals' searches end at this gap
constexpr int64_t kCoarseWork = 50'000'000;  // steps of each rival's search
constexpr size_t kBeside = 2;                // runners-up of each search that are simulated
constexpr size_t kPolished = 6;              // number of plans that are polished
// Limits of polishing: the number of operators over all simulated steps, and the number of steps.
constexpr int64_t kPlayedOperators = 60'000, kFewestPlays = 24, kMostPlays = 1200;
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
    return static_cast<int128>(played.step_ps) * other.plan.batch.samples() <
           static_cast<int128>(other.played.step_ps) * plan.batch.samples();
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
  // `limit_bytes`: of the plan's own peak.
  Selection(Searches& searches, const Request& problem, int64_t limit_bytes)
      : searches_(searches), problem_(problem), limit_bytes_(limit_bytes) {}

  Answer run() {
    if (problem_.paper() || searches_.wish().replay <= 0 || problem_.device.ranks == 1 || !search_rivals())
      return by_objective();
    std::stable_sort(seeds_.begin(), seeds_.end(),
                     [](const Seed& a, const Seed& b) { return a.faster_than(b); });
    const Seed& first = seeds_.front();
    std::vector<Found> plans;
    for (size_t i = 0; i < std::min(kPolished, seeds_.size()); ++i) plans.push_back(seeds_[i].plan);
    double exposed = first.exposed;
    if (!searches_.interrupted() && searches_.left_s() > -kOvertime * searches_.limit_s()) {
      plans.insert(plans.begin(), polished(player(exposed), plans));
      exposed = nearest(plans.front());
    }
    Schedule base = searches_.interrupted() ? Schedule{} : searches_.run(problem_at(exposed));
    Found best = base.feasible ? found_of(base) : first.plan;
    if (!base.feasible) {
      base = std::move(found_[first.of]);
      base.optimal = false;
      if (exposed != first.exposed) base.lower_bound_s_per_sample = 0;
      best.step_ps = player(exposed).objective_ps(candidacy(best));
    }
    return fastest_near(player(exposed), base, best, plans);
  }

  // The optimal plan by the objective.
  Answer by_objective() {
    const Schedule s = searches_.run(problem_);
    Answer none;
    none.limit_bytes = none.sum_limit_bytes = problem_.limit_bytes,
    none.smallest_limit_bytes = s.smallest_limit_bytes;
    if (!s.feasible) return none;
    Rehearsal& own = player(problem_.device.exposed);
    const Found plan = found_of(s);
    PlayedStep played;
    if (problem_.paper()) {
      played.step_ps = plan.step_ps;
    } else {
      played = own.play(candidacy(plan));
    }
    return answer(own, s, {plan, problem_.device.exposed, 0, played}, s.optimal);
  }

 private:
  struct Player {
    Request request;
    Rehearsal rehearsal;
    Player(const Planner& planner, Request r) : request(std::move(r)), rehearsal(request, planner.player()) {}
  };

  Request problem_at(double exposed) const {
    Request request = problem_;
    request.device.exposed = exposed;
    return request;
  }

  // Evaluates plans of the problem, with this weight of communication in the objective.
  Rehearsal& player(double exposed) {
    std::unique_ptr<Player>& known = players_[exposed];
    if (!known) known = std::make_unique<Player>(searches_.planner(), problem_at(exposed));
    return known->rehearsal;
  }

  // False if no plan was found whose step keeps the limit.
  bool search_rivals() {
    for (const Rival& rival : kRivals) {
      std::optional<Request> request = request_of(problem_, rival);
      if (!request) continue;
      request->find_smallest = false;
      Schedule s = searches_.run(*request, kCoarseGap, kCoarseWork);
      if (s.feasible) {
        add_seeds(s, request->device.exposed);
        if (!rival.whole_problem()) s.lower_bound_s_per_sample = 0;
        found_.push_back(std::move(s));
      } else if (found_.empty()) {
        return false;
      }
      if (searches_.over()) break;
    }
    return !seeds_.empty();
  }

  // Whether the step of `plan` keeps the limit.
  bool keeps(const Rehearsal& own, const Found& plan) const {
    return searches_.keeps(own.plain(candidacy(plan)), plan.peak_bytes, limit_bytes_);
  }

  // Adds a rival's plans, evaluated as plans of the problem with the rival's weight of communication.
  void add_seeds(const Schedule& s, double exposed) {
    Rehearsal& own = player(exposed);
    const auto add = [&](Found plan) {
      const Candidacy decided = candidacy(plan);
      plan.step_ps = own.objective_ps(decided), plan.peak_bytes = own.peak_bytes(decided);
      if (plan.peak_bytes <= problem_.limit_bytes && keeps(own, plan))
        seeds_.push_back({plan, exposed, found_.size(), own.play(decided)});
    };
    add(found_of(s));
    for (size_t k = 0; k < std::min(kBeside, s.runners_up.size()); ++k) add(s.runners_up[k]);
  }

  Found polished(Rehearsal& own, const std::vector<Found>& plans) const {
    const auto operators = static_cast<int64_t>(own.model().operators.size());
    const int64_t plays =
        std::clamp(kPlayedOperators / std::max<int64_t>(1, operators), kFewestPlays, kMostPlays);
    std::vector<Candidacy> seeds;
    for (const Found& plan : plans) seeds.push_back(candidacy(plan));
    const auto kept = [&](const Candidacy& plan) {
      return searches_.keeps(own.plain(plan), own.peak_bytes(plan), limit_bytes_);
    };
    return polish(own, seeds, plays, kept).plan;
  }

  // The first seed's weight of communication, or the next smaller one for which the objective of `plan` is
  // near enough to the best.
  double nearest(const Found& plan) {
    const double first = seeds_.front().exposed;
    std::map<double, Found, std::greater<>> best;  // by weight, descending
    for (const Seed& seed : seeds_) {
      const auto [at, fresh] = best.try_emplace(seed.exposed, seed.plan);
      if (!fresh && seed.plan.faster_than(at->second)) at->second = seed.plan;
    }
    for (const auto& [exposed, least] : best) {
      if (exposed > first) continue;
      Found weighed = plan;
      weighed.step_ps = player(exposed).objective_ps(candidacy(plan));
      if (near(weighed, least, searches_.wish().replay)) return exposed;
    }
    return first;
  }

  // The fastest in simulation of `plans`, whose steps keep the limit, and `best`, the optimum of `base`,
  // among those near `best`. `own` evaluates the same objective. If the step of `best` does not keep the
  // limit, it is returned only if no other plan is near it.
  Answer fastest_near(Rehearsal& own, const Schedule& base, const Found& best,
                      const std::vector<Found>& plans) const {
    Seed fastest{best, 0, 0, own.play(candidacy(best))};
    const bool best_keeps = keeps(own, best);
    bool optimal = base.optimal, any = best_keeps;
    for (const Found& plan : plans) {
      Seed seed{plan, 0, 0, own.play(candidacy(plan))};
      seed.plan.step_ps = own.objective_ps(candidacy(plan));
      if (any && !seed.faster_than(fastest)) continue;
      if (!near(seed.plan, best, searches_.wish().replay)) continue;
      optimal = base.optimal && !best.faster_than(seed.plan);
      any = true;
      fastest = seed;
    }
    Answer a = answer(own, base, fastest, optimal);
    a.proven = base.optimal && best_keeps;
    return a;
  }

  Answer answer(const Rehearsal& own, const Schedule& base, const Seed& chosen, bool optimal) const {
    Answer a;
    a.feasible = true, a.optimal = optimal, a.proven = base.optimal;
    a.plan = own.plain(candidacy(chosen.plan));
    a.step_ps = chosen.plan.step_ps, a.peak_bytes = chosen.plan.peak_bytes, a.played = chosen.played;
    a.largest_peak_bytes = searches_.planner().largest_peak(a.plan, a.peak_bytes);
    a.exposed = own.request().device.exposed;
    a.prices = base.prices;
    a.lower_bound_s_per_sample = base.lower_bound_s_per_sample;
    a.limit_bytes = a.sum_limit_bytes = problem_.limit_bytes;
    return a;
  }

  Searches& searches_;
  const Request problem_;
  const int64_t limit_bytes_;
  std::map<double, std::unique_ptr<Player>> players_;  // by weight of communication
  std::vector<Schedule> found_;                        // of the rivals that found a plan
  std::vector<Seed> seeds_;
};

}  // namespace

Answer Searches::best_by_objective(int64_t sum_limit_bytes, const std::vector<Batch>& batches) {
  return Selection(*this, request(sum_limit_bytes, batches), sum_limit_bytes).by_objective();
}

Answer Searches::fastest_by_sum(int64_t sum_limit_bytes, int64_t limit_bytes,
                                const std::vector<Batch>& batches, bool find_smallest) {
  Request problem = request(sum_limit_bytes, batches);
  problem.find_smallest = find_smallest;
  return Selection(*this, problem, limit_bytes).run();
}

}  // namespace osdp::search
