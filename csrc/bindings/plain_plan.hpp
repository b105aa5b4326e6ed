// A plan as Python gives it to csrc/search: codes and numbers, beside the model's operators and blocks.
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include "search/problem/plain_plan.hpp"

// (mode, granularity, sharded slices, split) of each operator, recomputation of each block.
inline osdp::search::PlainPlan plain_plan(std::pair<int64_t, int64_t> batch,
                                          const std::vector<std::tuple<int, int64_t, int64_t, int>>& choices,
                                          const std::vector<int>& blocks) {
  using namespace osdp::search;
  PlainPlan plan{{batch.first, batch.second}, {}, {}};
  for (const auto& [mode, g, k, split] : choices) {
    plan.choices.push_back({static_cast<Mode>(mode), g, k, static_cast<Split>(split)});
  }
  for (int r : blocks) plan.blocks.push_back(static_cast<Recompute>(r));
  return plan;
}
