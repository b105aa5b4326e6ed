// The most that a step may hold, however long its communication takes.
//
// Note [Peaks of every timing]
// How far a lane has come is the only thing about a step's memory that depends on time: the thread that
// computes runs the same program, and a lane's tasks end in the order of their submission. So at each
// instruction a lane is somewhere between the last task that the program has waited for and the last one that
// was submitted, and every place in between is possible. The largest peak is the maximum over instructions
// and places. A step that is played (simulate/simulate.hpp) or run holds no more.
#pragma once

#include "search/simulate/step.hpp"

namespace osdp::search {

// In bytes. Throws InvalidProblem as `play` does.
int64_t largest_peak(const Step& step);

}  // namespace osdp::search
