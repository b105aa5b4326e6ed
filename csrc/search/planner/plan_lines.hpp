// The bounds of plans at several shares.
#pragma once

#include <unordered_map>

#include "search/branch/runners_up.hpp"

namespace osdp::search {

// Prices only the options that plans have, each once.
class PlanLines {
 public:
  // Requests that differ in their shares. `classes`: of such a request whose share of backward is the whole.
  // Both must outlive it.
  PlanLines(const Model& model, const EquivalenceClasses& classes, std::vector<Request> requests);

  // A plan's bound in ps per sample, of each request.
  std::vector<double> of(const Found& plan);

 private:
  const std::vector<int64_t>& option_ps(int op, Recompute way, const Candidate& c);

  const Model& model_;
  const EquivalenceClasses& classes_;
  const std::vector<Request> requests_;
  std::vector<Linear> compute_ps_;  // of each request
  std::unordered_map<const Candidate*, std::vector<int64_t>> option_ps_;
};

}  // namespace osdp::search
