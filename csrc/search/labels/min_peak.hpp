// The least memory that any plan of one batch size and largest transient needs, to the byte.
#pragma once

#include "search/labels/chain_resources.hpp"

namespace osdp::search {

struct MinPeak {
  bool complete = false;  // false: lists grew too long, or time ran out
  bool found = false;     // a plan whose largest phase is below what was asked for
  int64_t peak_bytes = 0;
  Decision decision;
};

// The plan with the least largest phase, where that is below `below` bytes; without what is held in every
// phase and the transients' reserve. Times count for nothing. `chain` must be possible. Note [Least peak].
MinPeak min_peak(const ChainResources& chain, int64_t below, Stopwatch& watch);

}  // namespace osdp::search
