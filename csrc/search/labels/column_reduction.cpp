// Note [Column reduction]
// Before label setting (Note [Label setting]) each segment's list of columns is shortened: a column is
// dropped if with it the bound at the phases' prices exceeds the target. Equal segments at equal prices share
// a list.
#include "search/labels/column_reduction.hpp"

#include <algorithm>
#include <cmath>

namespace osdp::search {
namespace {

constexpr size_t kMostColumns = 4000;  // of one segment
constexpr double kHuge = 1e300;

Stretch most_of(const std::vector<Item>& items) {
  Stretch most = kNoStretch;
  for (const Item& x : items)
    most = {0, std::max(most.before, x.before), std::max(most.after, x.after), std::max(most.peak, x.peak)};
  return most;
}

}  // namespace

bool ColumnReduction::make(Stopwatch& watch) {
  if (!make_lists(watch)) return false;
  shorten();
  return !watch.spent();
}

void ColumnReduction::lower(int64_t most) {
  most_ = most;
  shorten();
}

void ColumnReduction::shorten() {
  drop_dear();
  if (!infeasible_) find_extremes();
}

bool ColumnReduction::make_lists(Stopwatch& watch) {
  constexpr size_t kNone = ~size_t{0};
  const double allowance = static_cast<double>(most_) - bound_;
  const auto& segments = chain_->segments();
  std::vector<size_t> last(chain_->classes(), kNone);  // by class: the list of its previous segment
  for (size_t s = 0; s < segments.size(); ++s) {
    size_t& at = last[segments[s].cls];
    // Equal segments usually have no priced phase in or between them, so they have the same prices.
    if (at == kNone || prices_->of(segments[lists_[at].segment].first, segments[s].end) != 0) {
      auto columns = std::make_shared<BlockColumns>();
      if (!list_block_columns(*chain_, segments[s], *prices_, allowance, kMostColumns, watch, *columns))
        return false;
      at = lists_.size();
      List& list = lists_.emplace_back();
      for (const BlockColumn& t : columns->list)
        list.items.push_back({t, static_cast<uint32_t>(list.items.size())});
      list.columns = std::move(columns);
    }
    lists_[at].segment = s;
    list_of_.push_back(static_cast<uint32_t>(at));
  }
  return true;
}

// Computes the reduced costs of all items; returns the largest sum of reduced costs of a plan of time most_,
// up to rounding.
double ColumnReduction::find_costs() {
  for (List& list : lists_) {
    const StretchPrices prices(*prices_, chain_->segments()[list.segment]);
    list.extra.clear();
    list.least = kHuge;
    for (const Item& x : list.items)
      list.least = std::min(list.least, list.extra.emplace_back(prices.cost(x)));
    for (double& c : list.extra) c -= list.least;
  }
  double sum = 0;
  for (const uint32_t l : list_of_) sum += lists_[l].least;
  return static_cast<double>(most_) - (sum - prices_->all() * static_cast<double>(chain_->limit()));
}

void ColumnReduction::drop_dear() {
  const double memory = prices_->all() * static_cast<double>(chain_->limit());
  const double left = find_costs() + 4 + 1e-12 * (static_cast<double>(most_) + 2 * memory);
  if (left < 0) {
    infeasible_ = true;
    return;
  }
  for (List& list : lists_) {
    size_t kept = 0;
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (list.extra[i] <= left) list.items[kept++] = list.items[i];
    }
    list.items.resize(kept);
  }
}

void ColumnReduction::find_extremes() {
  const size_t n = size();
  std::vector<Extremes> own;  // by list
  for (const List& list : lists_) own.push_back({least_of(list.items), most_of(list.items)});
  from_.assign(n + 1, {});
  for (size_t s = n; s-- > 0;) {
    const Extremes& x = own[this->list(s)];
    from_[s] = {join(x.least, from_[s + 1].least), join(x.most, from_[s + 1].most)};
  }
}

}  // namespace osdp::search
