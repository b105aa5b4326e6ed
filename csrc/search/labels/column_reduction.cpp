// Note [Column reduction]
// Label setting (Note [Label setting]) considers those columns of each segment with which the bound at the
// phases' prices is at most the target. Equal segments at equal prices share a list.
#include "search/labels/column_reduction.hpp"

#include <algorithm>
#include <cmath>

namespace osdp::search {
namespace {

constexpr size_t kMostColumns = 4000;  // of one segment

Stretch most_of(const std::vector<BlockColumn>& items) {
  Stretch most = kNoStretch;
  for (const BlockColumn& x : items)
    most = {0, std::max(most.before, x.before), std::max(most.after, x.after), std::max(most.peak, x.peak)};
  return most;
}

}  // namespace

bool ColumnReduction::make(Stopwatch& watch) {
  constexpr size_t kNone = ~size_t{0};
  const double allowance = static_cast<double>(most_) - bound_;
  const auto& segments = chain_->segments();
  std::vector<size_t> last(chain_->classes(), kNone);  // by class: the list of its previous segment
  for (size_t s = 0; s < segments.size(); ++s) {
    size_t& at = last[segments[s].cls];
    // Equal segments usually have no priced phase in or between them, so they have the same prices.
    if (at == kNone || prices_->of(segments[lists_[at].segment].first, segments[s].end) != 0) {
      at = lists_.size();
      BlockColumns& columns = lists_.emplace_back().columns;
      if (!list_block_columns(*chain_, segments[s], *prices_, allowance, kMostColumns, watch, columns))
        return false;
    }
    lists_[at].segment = s;
    list_of_.push_back(static_cast<uint32_t>(at));
  }
  find_extremes();
  return !watch.spent();
}

void ColumnReduction::find_extremes() {
  const size_t n = size();
  std::vector<Extremes> own;  // by list
  for (const List& list : lists_) own.push_back({least_of(list.columns.list), most_of(list.columns.list)});
  from_.assign(n + 1, {});
  for (size_t s = n; s-- > 0;) {
    const Extremes& x = own[this->list(s)];
    from_[s] = {join(x.least, from_[s + 1].least), join(x.most, from_[s + 1].most)};
  }
}

}  // namespace osdp::search
