// ShardGroups: the ranks over which a unit's parameters are sharded, and the ranks that hold the same rows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/collectives.hpp"
#include "comm/two_level.hpp"
#include "runtime/store/spec.hpp"

namespace osdp::runtime {

// Note [Hybrid sharding]
// The W ranks form a 2-D mesh of W/R lines (replicas, usually hosts) of R ranks each. A HYBRID_SHARD
// parameter is sharded over the R ranks of a line, and each line holds all of it. The ranks at the same
// position of every line form a column and hold the same rows. So parameters are gathered within the line;
// gradients are reduce-scattered within the line (mean over R) and each rank's rows then all-reduced over its
// column (mean over W/R). The mean over equal parts of equal size is the mean over all W. Since the
// all-reduce gives every rank of a column the same bits, replicas stay equal. Lines and columns are process
// groups of their own. Lines' collectives run on the model's lane, columns' on a second one (Note [Two
// lanes]): all ranks submit the same sequence to each lane, and a rank belongs to one line and one column, so
// no two ranks ever wait for each other in different collectives. Sent per rank and step: 3 (R-1)/R S within
// the line, as FULL_SHARD over R ranks, and 2 (C-1)/C S/R over the column of C = W/R ranks.
struct ShardGroups {
  std::shared_ptr<comm::Collectives> shard;      // the ranks that together hold one copy
  std::shared_ptr<comm::Collectives> reduce;     // same ranks, for reductions; may be `shard`
  std::shared_ptr<comm::Collectives> replicate;  // the ranks that hold the same rows as this one; null: none

  // `shard`, if it gathers between hosts, then inside. Then `reduce` is of the line alone, and HybridReducer
  // reduces what it gives between hosts.
  std::shared_ptr<comm::TwoLevel> levels = nullptr;

  int64_t rank() const { return shard->rank(); }
  int64_t world() const { return shard->world(); }
  int64_t total() const { return world() * (replicate ? replicate->world() : 1); }
  // Whether this rank is the one of its column that contributes the shared rows to a sum over all ranks.
  bool counts() const { return !replicate || replicate->rank() == 0; }
};

}  // namespace osdp::runtime
