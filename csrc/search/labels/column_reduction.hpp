// What each segment of a chain may do in a plan of at most so much time, and what the segments on either
// side of a cut do at least and at most. Note [Column reduction] in labels/column_reduction.cpp.
#pragma once

#include <memory>

#include "search/labels/block_columns.hpp"

namespace osdp::search {

struct Item : Stretch {
  uint32_t column = 0;  // index into its list's columns
};

// What bounds all plans of some segments that follow each other.
struct Extremes {
  int64_t least_before = 0, least_after = 0, least_peak = -kLargestSum;
  int64_t most_before = 0, most_after = 0, most_peak = -kLargestSum;
};

class ColumnReduction {
 public:
  ColumnReduction() = default;
  // Of plans that take at most `most` (without ChainResources::fixed_ps()); `bound` is what the prices prove.
  ColumnReduction(const ChainResources& chain, const PhasePrices& prices, double bound, int64_t most)
      : chain_(&chain), prices_(&prices), bound_(bound), most_(most) {}

  // False where there are too many columns of a segment, or time ran out.
  bool make(Stopwatch& watch);

  // After make(): of plans that take at most so much only.
  void lower(int64_t most);

  // No plan is fast enough: known after make() and lower().
  bool hopeless() const { return hopeless_; }
  size_t size() const { return chain_->segments().size(); }
  // Segments alike share a list: equal segments at equal prices, of whose amounts the same ones matter.
  size_t lists() const { return lists_.size(); }
  size_t list(size_t s) const { return list_of_[s]; }
  const std::vector<Item>& items(size_t s) const { return lists_[list(s)].items; }
  // A segment of a list: prices are the same for all.
  const ChainResources::Segment& segment_of(size_t list) const {
    return chain_->segments()[lists_[list].segment];
  }
  const std::vector<Item>& items_of(size_t list) const { return lists_[list].items; }
  Chosen chosen(size_t s, const Item& item) const { return lists_[list(s)].columns->chosen(item.column); }
  // As it is, whatever of its amounts was forgotten.
  const Stretch& column(size_t s, const Item& item) const {
    return lists_[list(s)].columns->list[item.column];
  }
  // Of the segments from s on.
  const Extremes& from(size_t s) const { return from_[s]; }

 private:
  struct List {
    std::shared_ptr<const BlockColumns> columns;
    std::vector<Item> items;
    std::vector<double> extra;  // by item: what it costs above the cheapest one
    double least = 0;           // the cheapest one's cost
    size_t segment = 0;         // the last one of those alike
    bool minimal = false;       // no item is no worse than another
  };
  bool make_lists(Stopwatch& watch);
  void shorten();
  double find_costs();
  void drop_dear();
  void find_extremes();
  void forget_harmless();

  const ChainResources* chain_ = nullptr;
  const PhasePrices* prices_ = nullptr;
  double bound_ = 0;
  int64_t most_ = 0;
  bool hopeless_ = false;
  std::vector<List> lists_;
  std::vector<uint32_t> list_of_;  // by segment
  std::vector<Extremes> until_, from_;
};

}  // namespace osdp::search
