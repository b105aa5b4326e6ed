#include "search/planner/step_search.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "search/bounds/pricing.hpp"
#include "search/heuristics/polish.hpp"
#include "search/planner/least_peak.hpp"
#include "search/planner/step_proof.hpp"

namespace osdp::search {
namespace {

constexpr double kFar = 0.02;   // gap above which parts' plans are improved, too
constexpr double kNear = 0.05;  // by how much a part's plans may be slower than the fastest, to be improved
// Bounds are no sharper for a smaller gap: that takes up to a hundred times as long, and raises none by more
// than a part of this.
constexpr double kSharpest = 0.005;
constexpr size_t kPolished = 6;  // plans that local search begins with
// Steps that local search simulates where the gap is kFar. In proportion to the gap: the larger it is, the
// more can be gained. Together they have Wish::played_operators at most.
constexpr double kPlays = 1000, kFewestPlays = 32;
constexpr double kLeastShare = 0.25, kMostShare = 4;

struct Seed {
  IndexedPlan plan;
  PlayedStep played;
  int64_t spare_bytes = 0;   // of its largest peak; negative: over the limit
  IndexedPlan asked = plan;  // that `plan` was made of
  bool faster_than(const Seed& o) const {
    return faster(played.step_ps, plan.batch, o.played.step_ps, o.plan.batch);
  }
};

class StepSearch {
 public:
  StepSearch(Searches& searches, const Request& problem, const PeakLimit& limit)
      : searches_(searches),
        limit_(limit),
        problem_(problem),
        gap_(searches.wish().gap),
        prover_(searches, problem, limit.most_bytes(), std::max(gap_, kSharpest)) {}

  // Any plan that fits, of those that attain the first bound, or the fastest one that is found.
  Answer run(bool any) {
    if (!first_plans()) return {};
    if (!any) search();
    return fits() ? answer() : Answer{};
  }

 private:
  void search() {
    // Parts are bounded in a fraction of the time; the faster the best plan, the less is left to be bounded.
    for (const Narrow narrow : kParts) search_part(narrow);
    sharpen();
    if (!fits() && least_fits()) consider(searches_.least(problem_.batches).plan);
    if (fits() && !done()) improve();
    for (const Narrow narrow : kFarParts)
      if (far() && most_plays() < wanted_plays()) search_part(narrow);
    for (const auto& part : parts_) {
      StepSearch& search = *part->search;
      if (!far()) break;
      search.to_beat_ps_ = fastest_ps();
      if (!search.done() && search.fastest_ps() < (1 + kNear) * fastest_ps()) search.improve();
      consider_part(search);
    }
  }

  Answer answer() {
    gather_no_further_than_needed();
    Answer a;
    a.feasible = true, a.plan = evaluator_->plain(seeds_.front().plan), a.played = seeds_.front().played;
    a.proof = prover_.proof(a.plan.batch.size);
    a.peak_bytes = evaluator_->largest_peak_bytes(seeds_.front().plan);
    return a;
  }

  // A part of the space. Its plans are plans of the whole space; it has fewer ways to go wrong, so they are
  // often faster.
  struct Part {
    Planner planner;
    Wish wish;
    std::optional<Searches> searches;
    std::unique_ptr<StepSearch> search;
    Part(const Planner& whole, Request request, const Wish& of_whole)
        : planner(whole.model(), std::move(request), whole.player().manner(), whole.times()), wish(of_whole) {
      wish.time_limit_s = 0;
    }
  };

  // Proves the bound, and simulates the plans that attain it. False if nothing fits.
  bool first_plans() {
    if (!prover_.prove()) return false;
    weighed_.emplace(problem_);
    weighed_->space.shares = prover_.shares();
    weighed_->space.every_latency = true;
    evaluator_.emplace(*weighed_, searches_.planner().player(), limit_.most_bytes(), prover_.first_batch());
    consider_proven();
    // Over all batches the smallest limit is that of the least plan; a batch is searched to the end.
    return fits() || !problem_.batches.empty() || least_fits();
  }

  bool least_fits() {
    const LeastPeak& least = searches_.least(problem_.batches);
    return least.found && limit_.spare(least.largest_peak_bytes) >= 0;
  }

  bool fits() const { return !seeds_.empty() && seeds_.front().spare_bytes >= 0; }
  // Times per sample: of the fastest plan, and that no plan is below.
  double fastest_ps() const {
    if (!fits()) return std::numeric_limits<double>::infinity();
    const Seed& best = seeds_.front();
    return static_cast<double>(best.played.step_ps) / static_cast<double>(best.plan.batch.samples());
  }
  double bound_ps() const { return 1e12 * prover_.lower_bound_s_per_sample(); }
  double enough_ps() const { return bound_ps() * (1 + gap_); }
  double gap() const { return fastest_ps() / bound_ps() - 1; }
  // What a faster plan has to beat.
  double wanted_ps() const { return std::min(fastest_ps(), to_beat_ps_); }
  bool done() const { return searches_.over() || wanted_ps() <= enough_ps(); }

  Seed simulated(const IndexedPlan& plan) {
    return {plan, evaluator_->play(plan), limit_.spare(evaluator_->largest_peak_bytes(plan))};
  }

  // Simulates a plan, whose units are gathered further ahead for as long as that makes its step shorter.
  // Keeps seeds sorted: those that fit, fastest first, then the others.
  void consider(const IndexedPlan& plan) {
    for (const Seed& s : seeds_)
      if (s.asked == plan || s.plan == plan) return;
    Seed seed = simulated(plan);
    seed.asked = plan;
    for (const int64_t prefetch : problem_.space.prefetches) {
      if (prefetch <= plan.prefetch) continue;
      IndexedPlan further = plan;
      further.prefetch = prefetch;
      Seed next = simulated(further);
      if (!next.faster_than(seed)) break;
      next.asked = plan;
      seed = std::move(next);
    }
    if (const std::optional<Seed> next = fuller(seed)) insert(*next);
    insert(std::move(seed));
  }

  void insert(Seed seed) {
    const auto before = [](const Seed& a, const Seed& b) {
      return (a.spare_bytes >= 0) != (b.spare_bytes >= 0) ? a.spare_bytes >= 0 : a.faster_than(b);
    };
    seeds_.insert(std::upper_bound(seeds_.begin(), seeds_.end(), seed, before), std::move(seed));
  }

  // With the memory that a plan leaves over used where its objective gains most. None: nothing fits into it.
  std::optional<Seed> fuller(const Seed& seed) {
    if (seed.spare_bytes <= 0) return {};
    PlanEvaluator& own = *evaluator_;
    const Pricing pricing(own.model(), own.request(), own.classes(), seed.plan.batch, false);
    PhaseMaxima phases(own.phases(seed.plan));
    const int64_t most = phases.at(phases.largest_phase()) + seed.spare_bytes;
    const std::vector<double> prices(phases.size(), 1.0 / static_cast<double>(phases.size()));
    IndexedPlan plan = seed.plan;
    pricing.improve(plan.decision, phases, most, prices);
    if (plan == seed.plan) return {};
    return simulated(plan);
  }

  void consider_proven() {
    for (; proven_ < prover_.plans().size(); ++proven_)
      consider(indexed_plan(prover_.plans()[proven_], problem_.space));
  }

  // Raises the bound by dividing the plans into ranges of budgets; their minima are more plans.
  void sharpen() {
    while (!done() && prover_.sharpen(1e-12 * wanted_ps() / (1 + gap_))) consider_proven();
  }

  void gather_no_further_than_needed() {
    for (const int64_t prefetch : problem_.space.prefetches) {
      IndexedPlan nearer = seeds_.front().plan;
      if (prefetch >= nearer.prefetch) return;
      nearer.prefetch = prefetch;
      Seed next = simulated(nearer);
      if (next.spare_bytes < 0 || seeds_.front().faster_than(next)) continue;
      seeds_.front() = std::move(next);
      return;
    }
  }

  void tell_gap() const {
    if (const auto& tell = searches_.wish().tell_gap) tell(fits() ? 1 - bound_ps() / fastest_ps() : 1);
  }

  bool far() const { return !done() && fastest_ps() > bound_ps() / (1 - kFar); }

  // Leaves something out; how much. All of it, or nothing: there is no such part.
  using Narrow = size_t (*)(Request&);

  // Nothing is replicated or kept gathered; everything is in host memory.
  static constexpr Narrow kParts[] = {
      [](Request& r) {
        return std::erase_if(r.space.modes, [](Mode m) { return !traits(m).sharded || traits(m).kept; });
      },
      [](Request& r) { return std::erase_if(r.space.modes, [](Mode m) { return !traits(m).on_host; }); }};

  // Nothing is in slices; nothing is recomputed; everything is. Where steps are long, local search simulates
  // few, and may find less in the whole space than in these.
  static constexpr Narrow kFarParts[] = {
      [](Request& r) { return std::erase_if(r.space.granularities, [](int64_t g) { return g > 1; }); },
      [](Request& r) { return std::erase_if(r.recompute, [](Recompute w) { return w != Recompute::None; }); },
      [](Request& r) {
        return std::erase_if(r.recompute, [](Recompute w) { return w == Recompute::None; });
      }};

  void search_part(Narrow narrow) {
    Request request = searches_.planner().request();
    if (done() || narrow(request) == 0 || request.space.modes.empty() || request.recompute.empty()) return;
    auto part = std::make_unique<Part>(searches_.planner(), std::move(request), searches_.wish());
    part->searches.emplace(part->planner, part->wish, [this] { return searches_.over(); });
    part->search = std::make_unique<StepSearch>(
        *part->searches, part->searches->request(problem_.limit_bytes, problem_.batches), limit_);
    part->search->to_beat_ps_ = fastest_ps();
    if (!part->search->first_plans()) return;
    part->search->sharpen();
    consider_part(*part->search);
    parts_.push_back(std::move(part));
  }

  void consider_part(StepSearch& part) {
    for (size_t n = 0; n < std::min(kPolished, part.seeds_.size()); ++n) {
      consider(in_whole_space(*evaluator_, part.evaluator_->plain(part.seeds_[n].plan)));
    }
  }

  double share_of_plays() const { return std::clamp(gap() / kFar, kLeastShare, kMostShare); }
  double wanted_plays() const { return share_of_plays() * kPlays; }
  double most_plays() const {
    const auto operators = static_cast<double>(std::max<size_t>(1, evaluator_->model().operators.size()));
    return std::min(share_of_plays(), 1.0) * static_cast<double>(searches_.wish().played_operators) /
           operators;
  }
  int64_t plays() const {
    return static_cast<int64_t>(std::max(kFewestPlays, std::min(wanted_plays(), most_plays())));
  }

  void improve() {
    PlanEvaluator& own = *evaluator_;
    std::vector<IndexedPlan> seeds;
    for (const bool others : {false, true}) {  // first the fastest of each batch
      for (const Seed& s : seeds_) {
        const auto same = [&](const IndexedPlan& plan) {
          return others ? plan == s.plan : plan.batch == s.plan.batch;
        };
        if (seeds.size() < kPolished && std::none_of(seeds.begin(), seeds.end(), same))
          seeds.push_back(s.plan);
      }
    }
    const auto left = [&](const IndexedPlan& plan) { return limit_.spare(own.largest_peak_bytes(plan)); };
    const auto over = [&] {
      tell_gap();
      return searches_.over();
    };
    consider(polish(own, seeds, plays(), left, enough_ps(), over).plan);
  }

  Searches& searches_;
  const PeakLimit& limit_;
  const Request problem_;
  const double gap_;
  StepProver prover_;
  size_t proven_ = 0;               // number of the prover's plans that were considered
  std::optional<Request> weighed_;  // the problem, with the shares that were proven
  std::optional<PlanEvaluator> evaluator_;
  std::vector<Seed> seeds_;
  // Of a part: the fastest plan of the whole space. A part whose bound is above that is not searched further.
  double to_beat_ps_ = std::numeric_limits<double>::infinity();
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace

Answer fastest_step(Searches& searches, const Request& problem, const PeakLimit& limit) {
  return StepSearch(searches, problem, limit).run(false);
}

Answer any_step(Searches& searches, const Request& problem, const PeakLimit& limit) {
  Answer found = StepSearch(searches, problem, limit).run(true);
  found.limit_bytes = problem.limit_bytes;
  return found;
}

}  // namespace osdp::search
