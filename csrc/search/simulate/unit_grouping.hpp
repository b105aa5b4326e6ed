// Which operators are gathered and reduced together: the units of a plan.
//
// Note [Order of units]
// A unit's operators keep execution order, and units are ordered by their first operator, so that a plan
// implies the same order of collectives on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "modes.hpp"
#include "search/simulate/step.hpp"

namespace osdp::search {

// The properties of an operator that determine its unit. Operators with different codes are not grouped.
struct Place {
  bool parameters = false;     // has parameters; otherwise the rest is ignored
  int64_t bytes = 0;           // of the parameters, as stored
  int64_t gathered_bytes = 0;  // of the gathered parameters or their reduced gradients, the larger
  int dtype = 0;               // code
  bool mixed = false;          // several dtypes: never grouped
  int block = -1;              // code of its block
  int gathered_at = 0;         // code of the modules that gather it
  int64_t modules = 1;         // their number
  bool traced = true;          // false: its calls are unknown
  std::vector<Span> calls;     // one per such module
  int64_t repeats = 1;         // calls of each of these modules in a forward
};

// The part of an operator's sharding that units depend on.
struct Sharding {
  Mode mode = Mode::NoShard;
  int64_t granularity = 1;
};

// Units as indices of operators, ascending inside and among units. NO_SHARD operators of one dtype fill
// buckets of at most `bucket_bytes`; they are not gathered, so the operators between them and their blocks do
// not matter. Sharded ones join their neighbour (NO_SHARD operators in between do not separate them) if mode,
// dtype and block are equal, one of the two has less than `small` bytes and together they have at most
// `most`. Untraced operators that are gathered at the same modules form one unit, since all of them are
// gathered there. Split operators, those with several gathering modules and those of mixed dtypes are units
// of their own.
std::vector<std::vector<int>> group_units(const std::vector<Place>& places,
                                          const std::vector<Sharding>& choices, int64_t bucket_bytes,
                                          int64_t small, int64_t most);

}  // namespace osdp::search
