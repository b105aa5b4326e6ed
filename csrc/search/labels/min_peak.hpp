// The least memory that any plan of one batch size needs, to the byte.
#pragma once

#include "search/labels/chain_resources.hpp"

namespace osdp::search {

struct MinPeak {
  bool complete = false;  // false: lists grew too long, or the budget was spent
  bool found = false;     // a plan whose largest phase is below `below`
  int64_t peak_bytes = 0;
  Decision decision;
};

// The plan whose largest phase is least, if that is below `below` bytes; both without
// ChainResources::reserved(). Times are ignored. `chain` must be possible. Note [Least peak].
MinPeak min_peak(const ChainResources& chain, int64_t below, Stopwatch& watch);

}  // namespace osdp::search
