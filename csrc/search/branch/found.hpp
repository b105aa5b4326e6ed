// A plan that a search found.
#pragma once

#include "search/problem/phases.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {

// Whether a step of `step_ps` with `batch` takes less time per sample than one of `other_ps` with `other`.
inline bool faster(int64_t step_ps, Batch batch, int64_t other_ps, Batch other) {
  return static_cast<int128>(step_ps) * other.samples() < static_cast<int128>(other_ps) * batch.samples();
}

// A feasible plan: every phase fits.
struct Found {
  Batch batch;
  Decision decision;
  int64_t step_ps = 0, peak_bytes = 0;
};

}  // namespace osdp::search
