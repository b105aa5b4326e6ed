// Which operators are gathered and reduced together: the units of a plan.
//
// Note [Order of units]
// A unit's operators keep execution order, and units are ordered by their first operator, so that the order
// of collectives that a plan implies is the same on every rank without anyone having to sort.
#pragma once

#include <cstdint>
#include <vector>

#include "modes.hpp"
#include "search/simulate/step.hpp"

namespace osdp::search {

// What of an operator decides with whom it travels. Those whose codes differ do not travel together.
struct Place {
  bool parameters = false;     // it has some; else nothing below counts
  int64_t bytes = 0;           // of them, as they are kept
  int64_t gathered_bytes = 0;  // as they are gathered or their gradients leave, whichever is more
  int dtype = 0;               // code
  bool mixed = false;          // dtypes: never travels with others
  int block = -1;              // code of the block that it is in
  int gathered_at = 0;         // code of the modules that gather it
  int64_t modules = 1;         // their number
  bool traced = true;          // false: nothing is known of its call
  std::vector<Span> calls;     // one per such module
  int64_t repeats = 1;         // of each of these in a forward
};

// How one operator is sharded, as far as units depend on it.
struct Sharding {
  Mode mode = Mode::NoShard;
  int64_t granularity = 1;
};

// Units as indices of operators, both rising. NO_SHARD operators of one dtype fill buckets of at most
// `bucket_bytes`; nothing gathers them, so what stands between them and which block they are in does not
// matter. Sharded ones join their neighbour (NO_SHARD operators in between do not part them) when mode, dtype
// and block are equal, one of the two is below `small` bytes and together they have at most `most`. Untraced
// operators that are gathered at the same modules are one unit, since all of them are gathered there. Split
// operators, those with several gathering modules and those of mixed dtypes are units of their own.
std::vector<std::vector<int>> group_units(const std::vector<Place>& places,
                                          const std::vector<Sharding>& choices, int64_t bucket_bytes,
                                          int64_t small, int64_t most);

}  // namespace osdp::search
