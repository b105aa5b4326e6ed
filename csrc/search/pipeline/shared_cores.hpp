// A schedule whose stages share cores, played.
#pragma once

#include <cstdint>
#include <vector>

#include "search/pipeline/passes.hpp"

namespace osdp::search {

// Note [Shared cores]
// Where ranks of one host share its cores, what a stage takes was measured while all of them compute. One
// that waits for another stage leaves its cores to the others, which are faster then: how much was measured,
// too. Where there are half as many cores as ranks, a host computes as much in the bubble as outside of it,
// until fewer ranks than cores are left. The waits for reductions behind a backward are treated alike, as on
// CPUs they take cores too, and so is the optimizer's step. What passes between stages takes its time whoever
// computes.
PlayedSchedule play_on_shared_cores(Passes passes, const std::vector<StageTimes>& times,
                                    const SharedCores& cores, bool record);

}  // namespace osdp::search
