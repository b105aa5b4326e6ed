// What each segment of a series may do in a plan of at most so much time, and what the segments on either
// side of a cut do at least and at most. Note [Stages] in stages.cpp.
#pragma once

#include <memory>

#include "search/treatments.hpp"

namespace osdp::search {

struct Item : Stretch {
  uint32_t treatment = 0;  // index into Stages::treatments
};

// What bounds all plans of some segments that follow each other.
struct Extremes {
  int64_t least_before = 0, least_after = 0, least_peak = -kLargestSum;
  int64_t most_before = 0, most_after = 0, most_peak = -kLargestSum;
};

class Stages {
 public:
  // Of plans that take at most `most` (without Series::fixed_ps()); `bound` is what the prices prove.
  Stages(const Series& series, const PhasePrices& prices, double bound, int64_t most)
      : series_(&series), prices_(&prices), bound_(bound), most_(most), size_(series.segments().size()) {}

  // False where there are too many treatments of a segment, or time ran out.
  bool make(Stopwatch& watch);

  // After make(): of plans that take at most so much only.
  void lower(int64_t most);

  // No plan is fast enough: known after make() and lower().
  bool hopeless() const { return hopeless_; }
  size_t size() const { return size_; }
  const std::vector<Item>& items(size_t s) const { return items_[s]; }
  const Treatment& treatment(size_t s, const Item& item) const { return (*treatments_[s])[item.treatment]; }
  // Of the segments from s on.
  const Extremes& from(size_t s) const { return from_[s]; }

 private:
  bool list(Stopwatch& watch);
  void shorten();
  double least_cost(size_t s) const;
  void drop_dear();
  void find_extremes();
  void forget_harmless();

  const Series* series_;
  const PhasePrices* prices_;
  double bound_;
  int64_t most_;
  size_t size_;
  bool hopeless_ = false;
  std::vector<std::shared_ptr<const std::vector<Treatment>>> treatments_;
  std::vector<std::vector<Item>> items_;
  std::vector<Extremes> until_, from_;
};

}  // namespace osdp::search
