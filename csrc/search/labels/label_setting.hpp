// The best plan of one batch size and largest transient, over all recomputation and sharding, with every
// phase within the limit: for models where many phases bind at once. Note [Label setting] in
// labels/label_setting.cpp.
#pragma once

#include <algorithm>
#include <cmath>

#include "search/labels/peak_bound.hpp"

namespace osdp::search {

struct LabelSettingResult {
  bool complete = false;  // false: given up, lists grew too long or time ran out
  bool found = false;     // a plan of at most so much time; the best where complete
  int64_t time_ps = 0;
  Decision decision;
  int64_t nodes = 0;
  // Another plan that was come across, faster than what was known; empty: none.
  int64_t seen_ps = 0;
  Decision seen;
};

class LabelSetting {
 public:
  // `prices`: of all phases (ps per byte), as near to the best ones as is known; they say which columns
  // are looked at.
  LabelSetting(ChainResources chain, const std::vector<double>& prices);
  LabelSetting(const LabelSetting&) = delete;  // its reduction refers to it

  // No plan takes less.
  double bound_ps() const { return bound_ + static_cast<double>(chain_.fixed_ps()); }

  // Looks for the best plan of at most `most_ps`. Gives up beyond `longest` partial plans in a list. A plan
  // of `known_ps` is known.
  LabelSettingResult look(int64_t most_ps, int64_t known_ps, size_t longest, Stopwatch& watch);

 private:
  // Plans up to some time: what each segment may do in them, and bounds by the price of the peak.
  struct Near {
    ColumnReduction reduction{};
    std::vector<PeakBound> bounds{};
    int64_t time = -1;  // that both hold for
    int64_t most = 0;   // no slower plan is asked for
  };
  enum class Progress { Done, Nothing, Stopped };  // Nothing: there is no such plan
  bool narrow(Near& near, int64_t time, Stopwatch& watch);
  Progress price_peak(Near& near, size_t longest, Stopwatch& watch);
  bool bound_peak(Near& near, size_t longest, size_t many, int64_t& most, Stopwatch& watch);
  void see(const PeakBound& bound, const ColumnReduction& reduction);
  LabelSettingResult search(int64_t most_ps, size_t longest, Stopwatch& watch);
  double step() const { return std::max(2.0, 4e-4 * std::abs(bound_ps())); }

  ChainResources chain_;
  PhasePrices prices_;
  ColumnReduction reduction_;
  int64_t listed_ = -1;  // stages_ are of plans up to this time
  // Times without fixed_ps: of the phases' prices; the best that is known; up to here there is no plan.
  double priced_bound_ = 0, bound_ = 0;
  int64_t proven_ = -1;
  double scale_ = 1.5;   // the best price of the peak, of the sum of all phases' prices,
  bool priced_ = false;  // once some bound is known
  int64_t seen_ps_ = 0;  // less than this is worth to be seen
  Decision seen_;
};

}  // namespace osdp::search
