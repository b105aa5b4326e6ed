// The least memory that any plan of one batch size and largest transient needs, to the byte.
#pragma once

#include "search/labels/chain_resources.hpp"

namespace osdp::search {

struct LeastPeak {
  bool complete = false;  // false: lists grew too long, or time ran out
  bool found = false;     // a plan whose largest phase is below what was asked for
  int64_t peak_bytes = 0;
  Decision decision;
};

// The plan with the least largest phase, where that is below `below` bytes; without what is held in every
// phase and the transients' reserve. Times count for nothing. `series` must be possible. Note [Least peak].
LeastPeak least_peak(const Series& series, int64_t below, Stopwatch& watch);

}  // namespace osdp::search
