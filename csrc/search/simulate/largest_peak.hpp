// The largest memory peak of a step over all possible durations of its communication.
//
// Note [Peaks of every timing]
// A step's memory depends on timing only through the progress of its lanes: the computing thread always runs
// the same program, and a lane's tasks end in the order of their submission. So at each instruction a lane's
// progress is between the last task that the program has waited for and the last one submitted, and every
// value in between is possible. The largest peak is the maximum over instructions and progress. A simulated
// step (simulate/simulate.hpp) or a real one holds no more. The memory of a released unit is kept for the
// next gather (Note [Blocks that come and go] in runtime/store/arena.hpp) and counted until that gather
// begins, or what ends such a wait. Blocks may be recomputed before or after the unit of their last operator
// is requested (Note [What triggers a recomputation] in simulate/step_program.hpp).
//   The program has all calls of a module at its first one's position, but its backward begins with the last
// call, wherever that is, and its unit stays gathered until the backward of the first. So both ends are
// walked: it is gathered at the begin of backward, and nothing at the first call, which would wait for
// reductions; or at the first call, and until then more gradients may leave, which share a budget with what
// is gathered.
#pragma once

#include <optional>

#include "search/problem/problem.hpp"
#include "search/simulate/step_program.hpp"

namespace osdp::search {

// The peaks of one step with different budgets for gathering, in bytes: its programs do not depend on them.
class LargestPeak {
 public:
  // `step` must outlive it; only its gather_bytes may change. Throws InvalidProblem as `play` does.
  explicit LargestPeak(const Step& step);
  // Ends at the first peak above `enough`, and returns that.
  int64_t find(int64_t enough = kLargestSum) const;

 private:
  const Step& step_;
  const Program after_use_;
  std::optional<Program> before_use_;  // where a block may be recomputed then
  bool repeats_ = false;               // a unit of a module that is called several times
};

inline int64_t largest_peak(const Step& step) { return LargestPeak(step).find(); }

}  // namespace osdp::search
