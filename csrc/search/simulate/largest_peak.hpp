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
#pragma once

#include "search/simulate/step.hpp"

namespace osdp::search {

// The peak in bytes. Throws InvalidProblem as `play` does.
int64_t largest_peak(const Step& step);

}  // namespace osdp::search
