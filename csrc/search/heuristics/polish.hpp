// Local search on the played step: from plans that searches found to one that plays faster.
//
// Note [Polish]
// The objective is a sum over operators; a step's critical path is not, and neighbours of one mode share a
// latency, so that a plan may have to change in several places at once before it plays faster. The best plans
// by several objectives are changed at random (heuristics/neighbours.hpp): first all blocks alike, then some
// of them. What is then over the limit is made smaller where the objective loses least, or at random; memory
// that is left is used where it gains most. A change that plays no slower stays. Where many have not helped,
// another plan has its turn, changed in a few places, until `plays` steps were played: a number, not a time,
// and the changes are the same every time, so the result is, too. Every plan that is returned fits the limit;
// nothing is proven of its played time.
#pragma once

#include "search/branch/runners_up.hpp"
#include "search/heuristics/rehearsal.hpp"

namespace osdp::search {

struct Polished {
  Found plan;             // step_ps: by the objective
  int64_t played_ps = 0;  // of a step
  size_t seed = 0;        // the one that it came from
};

// Of equally fast plans the earlier one. `seeds` keep the limit of the rehearsal's request; at least the
// first one is played, and all of them where `plays` suffices. Throws InvalidProblem where there are none, or
// one is none of the problem's.
Polished polish(Rehearsal& rehearsal, const std::vector<Candidacy>& seeds, int64_t plays);

}  // namespace osdp::search
