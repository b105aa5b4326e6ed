// The pricing problem over all phases: given a price per byte in every phase, each operator and block chooses
// independently. For one batch size. The relaxation has a few
// rows and groups equal instances; here every instance is treated at its position, so the result is a
// complete plan whose phases can be checked.
#pragma once

#include "search/bounds/phase_maxima.hpp"
#include "search/problem/phases.hpp"
#include "search/problem/problem.hpp"
#include "search/problem/ways.hpp"

namespace osdp::search {

class Pricing {
 public:
  // `memory_alone`: times are ignored, so an option that is no larger in any phase dominates.
  Pricing(const Model& model, const Request& request, const EquivalenceClasses& classes, Batch batch,
          bool memory_alone);

  // False if some operator has no option.
  bool possible() const { return possible_; }
  size_t phases() const { return phases_; }

  // The plan with the least time + sum over phases of price x bytes, prices in ps per byte. Ties are broken
  // by the mean memory over all phases.
  Decision cheapest(const std::vector<double>& prices) const;

  // Greedily moves operators of a plan to faster options while every phase stays within `limit` bytes (net of
  // the reserve): changes that save most time per priced byte first. `phases`: the plan's memory, updated.
  void improve(Decision& decision, PhaseMaxima& phases, int64_t limit,
               const std::vector<double>& prices) const;

  // Greedily moves operators of a plan to smaller options until every phase is within the limit: changes that
  // cost least time per byte first. Returns false if that fails.
  bool repair(Decision& decision, PhaseMaxima& phases, int64_t limit) const;

 private:
  struct Place;
  std::vector<Place> places(const Decision& decision) const;

  const EquivalenceClasses& classes_;
  const Batch batch_;
  const bool paper_;
  const size_t operators_, phases_;
  bool possible_ = true;
  std::vector<std::vector<Way>> ways_;  // by class
  size_t blocks_;
};

// The time of a step in picoseconds.
int64_t step_ps(const EquivalenceClasses& classes, const Decision& decision, Batch batch);

}  // namespace osdp::search
