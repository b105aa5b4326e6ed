// The optimal plan for one batch size, over all recomputation and sharding, with every
// phase within the limit. Made for models where many phases bind at once. Note [Label setting] in
// labels/label_setting.cpp.
#pragma once

#include <algorithm>
#include <cmath>

#include "search/labels/peak_bound.hpp"

namespace osdp::search {

struct LabelSettingResult {
  bool complete = false;  // false: stopped, since lists grew too long or the budget was spent
  bool found = false;     // a plan of time at most `most_ps`; optimal if complete
  int64_t time_ps = 0;
  Decision decision;
  int64_t nodes = 0;
  // Another plan found on the way that is faster than `known_ps`; empty: none.
  int64_t seen_ps = 0;
  Decision seen;
};

class LabelSetting {
 public:
  // `prices`: of all phases (ps per byte), the best multipliers known; they determine which columns are
  // considered.
  LabelSetting(ChainResources chain, const std::vector<double>& prices);
  LabelSetting(const LabelSetting&) = delete;  // its reduction refers to it

  // A lower bound of every plan's time.
  double bound_ps() const { return bound_ + static_cast<double>(chain_.fixed_ps()); }
  // The same, with what searches have shown, also those that gave up.
  double proven_ps() const {
    return std::max(bound_, static_cast<double>(proven_)) + static_cast<double>(chain_.fixed_ps());
  }

  // Searches for the optimal plan of time at most `most_ps`. Gives up if a list exceeds `longest` labels.
  // `known_ps`: time of the incumbent.
  LabelSettingResult look(int64_t most_ps, int64_t known_ps, size_t longest, Stopwatch& watch);

 private:
  // Bounds by the price of the peak for plans up to some time.
  struct Near {
    std::vector<PeakBound> bounds{};
    int64_t time = -1;  // they hold for plans up to this time
    int64_t most = 0;   // slower plans are not needed
  };
  enum class Progress { Done, Nothing, Stopped };  // Nothing: no such plan exists
  bool narrow(Near& near, int64_t time, Stopwatch& watch);
  Progress price_peak(Near& near, size_t longest, Stopwatch& watch);
  bool bound_peak(Near& near, size_t longest, size_t many, int64_t& most, Stopwatch& watch);
  void see(const PeakBound& bound);
  LabelSettingResult search(int64_t most_ps, size_t longest, Stopwatch& watch);
  double step() const { return std::max(2.0, 4e-4 * std::abs(bound_ps())); }

  ChainResources chain_;
  PhasePrices prices_;
  ColumnReduction reduction_;
  int64_t listed_ = -1;  // reduction_ is for plans up to this time
  // Times without fixed_ps: the bound at the phases' prices; the best known bound; no plan has at most
  // proven_.
  double priced_bound_ = 0, bound_ = 0;
  int64_t proven_ = -1;
  double scale_ = 1.5;   // the best known price of the peak, as a multiple of the sum of all phases' prices;
  bool priced_ = false;  // set once some bound is known
  int64_t seen_ps_ = 0;  // faster plans are kept in seen_
  Decision seen_;
};

}  // namespace osdp::search
