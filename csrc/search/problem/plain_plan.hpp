// A plan as plain values, without indices into a search's tables.
#pragma once

#include "search/problem/model.hpp"
#include "search/problem/request.hpp"

namespace osdp::search {

// One plan, by operator and by block.
struct PlainPlan {
  Batch batch;
  struct Choice {
    Mode mode = Mode::NoShard;
    int64_t granularity = 1, sharded_slices = 0;
    Split split = Split::None;
    bool operator==(const Choice&) const = default;
  };
  std::vector<Choice> choices;    // one per operator; ignored for operators without parameters
  std::vector<Recompute> blocks;  // one per entry of Model::blocks
  int64_t prefetch = 1;           // Step::prefetch
  int64_t gather_bytes = 0;       // Step::gather_bytes
};

}  // namespace osdp::search
