// Plays plans of one problem, given as decisions: what a step takes (simulate/simulate.hpp) once neighbours
// are joined to units, and what its largest phase holds (problem/phases.hpp).
#pragma once

#include "search/problem/phases.hpp"
#include "search/simulate/play_plan.hpp"

namespace osdp::search {

struct Candidacy {
  Batch batch;
  Decision decision;
};

// `request`, of the player's problem but for objective, limit and batches, and `player` must outlive it. Not
// const: it counts.
class Rehearsal {
 public:
  Rehearsal(const Request& request, const PlanPlayer& player);
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;

  const Model& model() const { return player_.model(); }
  const Request& request() const { return request_; }
  const Kinds& kinds() const { return kinds_; }

  // Throws InvalidProblem where `plan` is of another model, or its choices are not there.
  void check(const Candidacy& plan) const;
  // The largest phase with the transients' reserve: what the limit is held against.
  int64_t peak_bytes(const Candidacy& plan) const;
  // A whole step with all its micro-batches.
  PlayedStep play(const Candidacy& plan);
  int64_t step_ps(const Candidacy& plan) { return play(plan).step_ps; }
  // By the objective.
  int64_t objective_ps(const Candidacy& plan) const;
  int64_t plays() const { return plays_; }

  const std::vector<Candidate>& candidates(int op, Recompute way) const;
  Recompute way_of(int op, const Decision& decision) const;
  // Without indices into candidates.
  PlainPlan plain(const Candidacy& plan) const;

 private:
  const Request& request_;
  const PlanPlayer& player_;
  const Kinds kinds_;
  std::vector<const Slot*> slots_;  // by operator
  int64_t plays_ = 0;
};

}  // namespace osdp::search
