// What the step bound needs to know of each operator's place in the step: StepPosition in problem/model.hpp.
#pragma once

#include "search/simulate/play_plan.hpp"

namespace osdp::search {

// Sets the operators' positions. `manner.places` must be beside the operators.
// `blocks`: each is decided as a whole.
void set_step_positions(Model& model, const Manner& manner, bool blocks);

}  // namespace osdp::search
