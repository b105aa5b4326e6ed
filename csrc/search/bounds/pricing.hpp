// All phases at once: with a price per byte in every phase, each operator and block chooses for itself. Of
// one batch size, and without options above one transient. Unlike the relaxation, which knows a few rows and
// counts equal instances together, this looks at every instance where it stands; what it chooses is a
// complete plan, whose phases can be checked.
#pragma once

#include "search/problem/phases.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {

class Pricing {
 public:
  // `memory_alone`: options that are smaller in every phase win, whatever their time.
  Pricing(const Model& model, const Request& request, const Kinds& kinds, Batch batch,
          int64_t largest_transient, bool memory_alone);

  // False where some operator has no option.
  bool possible() const { return possible_; }
  size_t phases() const { return phases_; }

  // The plan with the least sum over phases of weight x bytes, and that sum, but for the transients' reserve:
  // no plan has less. Ties go to what holds less on the average of all phases.
  int128 least(const std::vector<int64_t>& weights, Decision& decision) const;

  // The plan with the least time + sum over phases of price x (bytes - limit), prices in ps per byte; and
  // that sum, less a margin for rounding: no plan within the limit takes less time.
  double cheapest(const std::vector<double>& prices, double limit, Decision& decision) const;

  // Makes operators of a plan faster while every phase stays within `limit` bytes (the reserve is off it):
  // the changes with the most time for their bytes first, at these prices. `phases`: of the plan, kept up to
  // date.
  void quicken(Decision& decision, std::vector<int64_t>& phases, int64_t limit,
               const std::vector<double>& prices) const;

  // Makes operators of a plan smaller until every phase is within the limit, those first that lose the least
  // time for it. False where that does not succeed.
  bool repair(Decision& decision, std::vector<int64_t>& phases, int64_t limit) const;

 private:
  struct Option {
    int candidate = 0;
    int64_t time = 0, before = 0, own = 0, after = 0, held = 0;  // own: beside `before`
  };
  struct Way {
    Recompute way;
    int64_t time = 0;
    std::vector<std::vector<Option>> slots;  // empty: no parameters
  };
  struct Place;
  std::vector<Place> places(const Decision& decision) const;
  template <typename Price, typename Cost>
  Cost choose(const std::vector<Price>& prices, bool with_time, Decision& decision) const;

  const Kinds& kinds_;
  const Batch batch_;
  const bool paper_;
  const size_t operators_, phases_;
  bool possible_ = true;
  double most_ = 0;                     // bytes, no phase has more
  std::vector<std::vector<Way>> ways_;  // by kind
  size_t blocks_;
};

// Picoseconds of a step.
int64_t step_ps(const Kinds& kinds, const Decision& decision, Batch batch);

}  // namespace osdp::search
