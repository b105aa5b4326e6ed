// The best plan of one batch size and largest transient, over all recomputation and sharding, with every
// phase within the limit: for models where many phases bind at once. Note [Sequence] in sequence.cpp.
#pragma once

#include "search/peak_bound.hpp"

namespace osdp::search {

struct SequenceFound {
  bool complete = false;  // false: given up, lists grew too long or time ran out
  bool found = false;     // a plan of at most so much time; the best where complete
  int64_t time_ps = 0;
  Decision decision;
  int64_t nodes = 0;
};

class Sequence {
 public:
  // `prices`: of all phases (ps per byte), as near to the best ones as is known; they say which treatments
  // are looked at. `others`: more prices, to bound partial plans with.
  Sequence(Series series, const std::vector<double>& prices, const std::vector<std::vector<double>>& others);

  // No plan takes less.
  double bound_ps() const { return bound_ + static_cast<double>(series_.fixed_ps()); }

  // Looks for the best plan of at most `most_ps`. Gives up beyond `longest` partial plans in a list.
  SequenceFound look(int64_t most_ps, size_t longest, Stopwatch& watch);

 private:
  bool bound_peak(const Stages& stages, size_t longest, double scale, size_t many, int64_t& most,
                  std::vector<PeakBound>& bounds, Stopwatch& watch) const;

  Series series_;
  std::vector<PhasePrices> views_;
  double bound_ = 0;    // without fixed_ps
  double scale_ = 1.2;  // the best price of the peak, of the sum of all phases' prices
};

}  // namespace osdp::search
