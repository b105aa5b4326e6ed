// The least memory that any plan of one batch size needs, to the byte.
#pragma once

#include "search/labels/chain_resources.hpp"

namespace osdp::search {

struct MinPeak {
  bool complete = false;  // false: lists grew too long, or the budget was spent
  bool found = false;     // a plan within the limit
  int64_t peak_bytes = 0;
  Decision decision;
};

// The plan whose largest phase is least, if that is within the chain's limit; without
// ChainResources::reserved(). `chain` must be possible and of memory alone. Note [Least peak].
MinPeak min_peak(const ChainResources& chain, Stopwatch& watch);

}  // namespace osdp::search
