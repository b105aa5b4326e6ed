// The best few distinct plans that a search found. They are simulated later, which is more precise than the
// objective.
#pragma once

#include <map>

#include "search/problem/phases.hpp"

namespace osdp::search {

// Whether a step of `step_ps` with `batch` takes less time per sample than one of `other_ps` with `other`.
bool faster(int64_t step_ps, Batch batch, int64_t other_ps, Batch other);

// A feasible plan: every phase fits.
struct Found {
  Batch batch;
  Decision decision;
  int64_t step_ps = 0, peak_bytes = 0;

  // Whether it takes less time per sample.
  bool faster_than(const Found& other) const;
};

// Two plans are alike if their batch and numbers of blocks per recomputation are equal;
// the fastest of them is kept, ties go to the first.
class RunnersUp {
 public:
  static constexpr size_t kMost = 8;
  static constexpr double kWithin = 1.03;  // factor of the best plan's time per sample

  void offer(const Found& plan);

  // At most kMost plans within kWithin, the fastest first, none of them like `best`.
  std::vector<Found> beside(const Found& best) const;

 private:
  using Key = std::vector<int64_t>;
  static Key key_of(const Found& plan);

  std::map<Key, Found> found_;
};

}  // namespace osdp::search
