// The columns of each segment that plans up to a given time can use, and bounds on the memory of the segments
// after each cut of the chain. Note [Column reduction] in labels/column_reduction.cpp.
#pragma once

#include "search/labels/block_columns.hpp"

namespace osdp::search {

// Bounds that hold for all plans of a range of segments.
struct Extremes {
  Stretch least = kNoStretch, most = kNoStretch;
};

class ColumnReduction {
 public:
  ColumnReduction() = default;
  // For plans of time at most `most`; `bound` is the lower bound at these prices. Both without
  // ChainResources::fixed_ps().
  ColumnReduction(const ChainResources& chain, const PhasePrices& prices, double bound, int64_t most)
      : chain_(&chain), prices_(&prices), bound_(bound), most_(most) {}

  // False if a segment has too many columns, or if the budget is spent.
  bool make(Stopwatch& watch);

  size_t size() const { return chain_->segments().size(); }
  // Equal segments at equal prices share a list.
  size_t lists() const { return lists_.size(); }
  size_t list(size_t s) const { return list_of_[s]; }
  const std::vector<BlockColumn>& items(size_t s) const { return items_of(list(s)); }
  // A representative segment of a list; all have the same prices.
  const ChainResources::Segment& segment_of(size_t list) const {
    return chain_->segments()[lists_[list].segment];
  }
  const std::vector<BlockColumn>& items_of(size_t list) const { return lists_[list].columns.list; }
  Chosen chosen(size_t s, const BlockColumn& x) const { return lists_[list(s)].columns.chosen(x); }
  // Over the segments from s on.
  const Extremes& from(size_t s) const { return from_[s]; }

 private:
  struct List {
    BlockColumns columns;
    size_t segment = 0;  // the last one of those that share the list
  };
  void find_extremes();

  const ChainResources* chain_ = nullptr;
  const PhasePrices* prices_ = nullptr;
  double bound_ = 0;
  int64_t most_ = 0;
  std::vector<List> lists_;
  std::vector<uint32_t> list_of_;  // by segment
  std::vector<Extremes> from_;
};

}  // namespace osdp::search
