// A lower bound on the simulated step of every plan that fits.
//
// Note [The best shares]
// For given shares the step bound is a sum over operators, so branch and bound minimises it over all plans
// (Note [Step bound] in problem/step_bound.hpp). The minimum is a concave function of the shares: each plan's
// bound is linear in them, and it is the least of these lines. So shares are chosen by cutting planes: those
// that are best for the plans found so far come next, until no shares can raise the bound by more than a
// small part of the gap that was asked for.
//
// Memory is what phases hold whatever the timing (Space::certain_memory), never above a plan's largest peak,
// so all plans that fit are covered.
#pragma once

#include <array>

#include "search/planner/searches.hpp"

namespace osdp::search {

struct StepProof {
  bool feasible = false;                // false: no plan fits
  double lower_bound_s_per_sample = 0;  // per rank
  StepShares shares;                    // of that bound
  std::vector<Found> plans;             // the minima for the shares tried, and plans near them
};

class StepProver {
 public:
  // Of the plans whose largest peak is at most `limit_bytes`, for the problem's batches.
  StepProver(Searches& searches, const Request& problem, int64_t limit_bytes);

  // Bounds that are within about `gap` / 10 of the best.
  StepProof prove(double gap);
  // The best plans by the bound with these shares under another limit of the certain memory; with
  // `every_latency` plans whose operators do not need a unit with their neighbours.
  Schedule at(StepShares shares, int64_t limit_bytes, double gap, bool every_latency = false) const;

 private:
  struct Line {  // a plan's bound in ps per sample: constant + forward x + backward y for shares 0 <= x, y <=
                 // 1
    double constant, forward, backward;
    double at(double x, double y) const { return constant + forward * x + backward * y; }
  };

  Request request(StepShares shares, int64_t limit_bytes) const;
  Line line_of(const Found& plan) const;
  // The shares at which the lowest of the lines is highest, and its value.
  std::pair<StepShares, double> best_shares() const;

  Searches& searches_;
  const Request problem_;
  const int64_t limit_bytes_;
  std::array<Kinds, 3> corners_;  // costs with shares (0, 0), (1, 0) and (0, 1)
  std::vector<Line> lines_;
};

}  // namespace osdp::search
