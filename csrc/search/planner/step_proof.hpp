// A lower bound on the simulated step of every plan that fits.
//
// Note [The best shares]
// For given shares the step bound is a sum over operators, so branch and bound minimises it over all plans
// (Note [Step bound] in problem/step_bound.hpp). The minimum is a concave function of the shares: each plan's
// bound is linear in them, and it is the least of these lines. So shares are chosen by cutting planes: those
// that are best for the plans found so far come next, until no shares can raise the bound by more than a
// small part of the gap that was asked for.
//
// Memory is what phases hold whatever the timing, never above a plan's largest peak,
// so all plans that fit are covered.
//
// Note [Ranges of the budget]
// Whether a transfer can be hidden depends on one number of the plan, its budget for gathering (Note [Budget
// for gathering] in simulate/gather_budget.hpp): units that do not fit into it together are gathered one
// after the other, while computation waits; units that fit into it are in memory together. Without a budget
// the bound has the best of both. So the plans are branched on it: for a range of budgets, what exceeds its
// end is waited for, and what fits into its begin takes memory (GatherRange). The bound of all plans is the
// lowest of those of ranges that cover all budgets. The range with the lowest one is divided, at a size at
// which something begins to fit, as long as that can raise the bound above what the best plan needs.
//
// Note [Ranges of the batch]
// A larger batch hides more transfers, so its best shares are others: for all batches together the bound is
// that of shares which suit none. And its operators' times lie on other lines (Note [Lines of time] in
// problem/timed_model.hpp). The plans are branched on the batch, too, at the one of the plan that
// attains the lowest bound, or if its search was stopped, at the one that it was still searching.
//
// Each of these searches knows the plans that attained the bounds before it: where one still attains the
// range's bound, there is nothing to search. Shares of a part are chosen for the plans of its range that are
// in the part, too. It ends at a bound that is enough, with a plan or without; and of shares at which some
// plan is below the bound that other shares prove, it finds only nearly the lowest.
//
// The weights of pairs of neighbours (Note [Neighbours] in problem/step_bound.hpp) are chosen in each range
// as the shares are, by the plans found so far: for given shares the bound is concave in them.
#pragma once

#include <array>
#include <map>

#include "search/planner/plan_lines.hpp"
#include "search/planner/searches.hpp"

namespace osdp::search {

// The problem whose objective is the bound with these shares, of plans with a budget in this range, under a
// limit of the certain memory.
Request bound_request(Request problem, StepShares shares, int64_t limit_bytes, GatherRange gather = {});

class StepProver {
 public:
  static constexpr int64_t kWork = 20'000'000;  // steps of the search for one pair of shares
  // Steps of the same for parts at first: dividing them raises their bounds more than searching them longer.
  static constexpr int64_t kPartWork = 4'000'000;

  // Of the plans whose largest peak is at most `limit_bytes`, for the problem's batches. Bounds are within
  // about `gap` / 10 of the best for their ranges.
  StepProver(Searches& searches, const Request& problem, int64_t limit_bytes, double gap,
             int64_t part_work = kPartWork);

  // Proves a first bound. False if no plan fits.
  bool prove();
  // Divides the range with the lowest bound, or searches it for longer, and appends to plans(). Bounds above
  // `enough` seconds per sample need not be sharp. False if nothing is left to do, or if enough was done.
  bool sharpen(double enough);

  double lower_bound_s_per_sample() const;  // per rank
  StepShares shares() const;                // of that bound
  // With what can be priced: the bound of plans with any budget and batch. `times`: the batch whose times it
  // has, if they vary; 0: any.
  Proof proof(int64_t times);
  // A batch of plans that attain the first bound.
  int64_t first_batch() const { return all_.size; }
  // The minima for the ranges and shares tried, and plans near them.
  const std::vector<Found>& plans() const { return plans_; }

 private:
  struct Range {
    GatherRange gather;
    BatchSizes sizes;
    double bound_s_per_sample = 0;
    StepShares shares;  // of that bound
    bool feasible = false;
    int64_t work = 0;               // of each of its searches at most
    bool stopped = false;           // one of them ended there
    bool divided = false;           // a part, whose bound no certificate repeats
    int64_t size = 1;               // the batch of the plan that attains it, or that keeps it as low
    int64_t times = 0;              // that whose times its bounds have: Note [Lines of time]
    std::vector<int> phases;        // that its search constrained
    std::vector<PairWeight> pairs;  // of that bound
    std::vector<Found> plan;        // that attains it, if one is known
    std::vector<Found> near;        // all that its searches found, the last ones first
  };
  // A plan's bound in ps per sample: what each share adds, the compute form's at the knots.
  static constexpr size_t kMostKnots = 4;
  using AtKnots = std::array<double, kMostKnots>;
  struct Line {
    double constant = 0, link = 0, averages = 0, reductions = 0;
    AtKnots forward{}, backward{};
    void add(const Line& other, double weight);
  };
  struct PlanBound {  // its line, and what each entry of a range's pairs adds at the whole
                      // weight
    Line line;
    std::vector<Line> pairs;
    Line with(const std::vector<PairWeight>& weights) const;
  };
  // Bounds the plans with a budget and a batch in these ranges, beginning with the shares, weights and bound
  // of another range; ends when that is at least `enough`. Each search takes `work` steps at most.
  Range bounded(GatherRange gather, BatchSizes sizes, const Range& beginning, double enough, int64_t work);
  // Those of `plans` that are in the range and fit its phases.
  std::vector<Found> fitting(const std::vector<Found>& plans, const Range& range,
                             const Request& request) const;
  // The first bound with the times of a batch.
  Range with_times(int64_t batch);
  const Model& model(const Range& range) const { return searches_.planner().model(range.times); }
  const EquivalenceClasses& classes(const Range& range);
  // The parts of a range, by batch or by budget; none: nothing can be divided.
  std::vector<std::pair<GatherRange, BatchSizes>> parts_of(const Range& range) const;
  void find_sizes();
  void find_knots();
  double at(const Line& line, const StepShares& shares) const;
  // Without shares, with each of forward's knots alone, each of backward's, and the whole of the forms of the
  // link, of averages and of reductions.
  std::vector<Request> requests_of(const Range& range) const;
  Line line_through(std::vector<double> values) const;  // of these requests
  PlanLines lines_in(const Range& range);
  std::vector<Line> pairs_of(const Found& plan, const Range& range, const std::vector<PairWeight>& pairs);
  // The problem whose objective is the bound of a range with these shares.
  Request request_of(const Range& range, StepShares shares) const;
  // All pairs that do not fit into a range's budgets together, or whose reductions may take turns.
  std::vector<PairWeight> pairs_in(const Range& range) const;
  // The weights and shares at which the lowest of the plans' bounds is highest, as far as a search along each
  // of them finds.
  std::pair<StepShares, double> best_weights(const std::vector<PlanBound>& plans, StepShares shares,
                                             std::vector<PairWeight>& weights) const;
  // The shares at which the lowest of the lines is highest, and its value.
  std::pair<StepShares, double> best_shares(const std::vector<Line>& lines) const;

  Searches& searches_;
  const Request problem_;
  const int64_t limit_bytes_;
  const double gap_;
  const int64_t part_work_;
  int64_t work_;                                   // steps of all searches that are left
  std::map<int64_t, EquivalenceClasses> classes_;  // by the batch whose times they have
  std::vector<int64_t> sizes_;  // ascending: budgets into which something more fits than into smaller ones
  // Ascending shares, 0 and the whole among them: from one at which transfers take as much alone as beside
  // computation to the next a plan's bound is linear.
  std::vector<int64_t> knots_;
  std::vector<Range> ranges_;  // a heap: the lowest bound first
  Range all_;                  // the first one
  std::vector<Found> plans_;
  double first_bound_ = 0;  // in seconds per sample, before divisions
  int divisions_ = 0;
};

}  // namespace osdp::search
