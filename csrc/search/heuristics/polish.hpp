// Local search on the played step: from plans that searches found to one that plays faster.
//
// Note [Polish]
// The objective is a sum over operators; a step's critical path is not. So the best plans by the objective
// are played, and the fastest of them is changed: all operators, those of one kind, or single ones near
// either end of the model take another mode; the first or last blocks of a kind another recomputation. What
// is then over the limit is made smaller where the objective loses least, and memory that is left is used
// where it gains most. Coarse changes come first. A change that plays faster stays. Then the next plan has
// its turn, until `plays` steps were played: a number, not a time, so that the result is the same every time.
// Every plan that is returned fits the limit; nothing is proven of its played time.
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
