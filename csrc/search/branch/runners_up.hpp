// The best few plans that a search came across, no two of them alike: for whoever wants to look at them more
// closely than the objective does.
#pragma once

#include <map>

#include "search/problem/phases.hpp"

namespace osdp::search {

// A plan whose every phase fits.
struct Found {
  Batch batch;
  int64_t transient_bytes = 0;  // the largest among the choices
  Decision decision;
  int64_t step_ps = 0, peak_bytes = 0;

  // Whether it takes less time per sample.
  bool faster_than(const Found& other) const;
};

// Plans are alike where batch, largest transient and the number of blocks treated each way are equal; of
// those the fastest is kept, of equally fast ones the first.
class RunnersUp {
 public:
  static constexpr size_t kMost = 8;
  static constexpr double kWithin = 1.03;  // times the best plan's time per sample

  void offer(const Found& plan);

  // At most kMost, the fastest first, none slower than kWithin allows and none like `best`.
  std::vector<Found> beside(const Found& best) const;

 private:
  using Key = std::vector<int64_t>;
  static Key key_of(const Found& plan);

  std::map<Key, Found> found_;
};

}  // namespace osdp::search
