// Note [Column reduction]
// Before label setting (Note [Label setting]) each segment's list of columns is shortened:
// - A column is dropped if with it the bound at the phases' prices exceeds the target.
// - A phase that is within the limit for every choice from the lists need not be checked. Then the segment's
//   peak is forgotten, that is, lowered to the least one of its list. A segment's memory after its backward
//   matters to earlier phases only, and is forgotten if none of those can exceed the limit; in the same way
//   its memory before, for later phases. With fewer numbers to compare more columns are dominated, and more
//   labels.
// Equal segments share a list until they differ in which amounts matter, so that this work is done once for
// them. The most memory that the lists can hold together is bounded by a Lagrangian argument, too: a column's
// memory is reduced by its reduced cost times some rate, and the sum of a plan's reduced costs is at most the
// difference between the target and the bound.
#include "search/labels/column_reduction.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace osdp::search {
namespace {

constexpr size_t kMostColumns = 4000;  // of one segment
constexpr double kHuge = 1e300;

// Upper bounds of the memory held, minus a penalty for the cost; join(): x followed by y.
struct Most {
  double before = 0, after = 0, peak = -kHuge;
  static Most join(const Most& x, const Most& y) {
    return {x.before + y.before, x.after + y.after, std::max(x.peak + y.after, x.before + y.peak)};
  }
};

int64_t narrow(double v) {
  return v <= -static_cast<double>(kLargestSum)  ? -kLargestSum
         : v >= static_cast<double>(kLargestSum) ? kLargestSum
                                                 : static_cast<int64_t>(std::ceil(v));
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
  if (infeasible_) return;
  find_extremes();
  forget_harmless();
  find_extremes();
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
  until_.assign(n + 1, {}), from_.assign(n + 1, {});
  std::vector<Stretch> least;  // by list
  for (const List& list : lists_) least.push_back(least_of(list.items));
  for (size_t s = 0; s < n; ++s) until_[s + 1].least = join(until_[s].least, least[list(s)]);
  for (size_t s = n; s-- > 0;) from_[s].least = join(least[list(s)], from_[s + 1].least);
  for (std::vector<Extremes>* all : {&until_, &from_})
    for (Extremes& e : *all) e.most = {0, kLargestSum, kLargestSum, kLargestSum};
  // Rates of the penalty: none, or bytes per ps as multiples of 1 / (sum of all prices).
  constexpr std::array<double, 5> kRates{0.0, 0.5, 2.0, 8.0, 32.0};
  const double price = prices_->all(), left = find_costs();
  std::array<double, kRates.size()> bytes_per_ps{};
  for (size_t r = 1; r < kRates.size() && price > 0; ++r) bytes_per_ps[r] = kRates[r] / price;
  std::vector<std::array<Most, kRates.size()>> own(lists_.size());
  for (size_t l = 0; l < lists_.size(); ++l) {
    own[l].fill({-kHuge, -kHuge, -kHuge});
    for (size_t i = 0; i < lists_[l].items.size(); ++i) {
      const Item& x = lists_[l].items[i];
      const auto held = static_cast<double>(x.before), later = static_cast<double>(x.after),
                 peak = static_cast<double>(x.peak);
      for (size_t r = 0; r < kRates.size(); ++r) {
        const double spent = bytes_per_ps[r] * lists_[l].extra[i];
        Most& m = own[l][r];
        m.before = std::max(m.before, held - spent);
        m.after = std::max(m.after, later - spent);
        m.peak = std::max(m.peak, peak - spent);
      }
    }
  }
  for (size_t r = 0; r < (price > 0 ? kRates.size() : 1); ++r) {
    const double most_spent = bytes_per_ps[r] * std::max(left, 0.0) + (r == 0 ? 0 : 16);
    const auto lower = [&](Extremes& e, const Most& m) {
      e.most.before = std::min(e.most.before, narrow(m.before + most_spent));
      e.most.after = std::min(e.most.after, narrow(m.after + most_spent));
      e.most.peak = std::min(e.most.peak, m.peak == -kHuge ? -kLargestSum : narrow(m.peak + most_spent));
    };
    Most m;
    lower(until_[0], m);
    for (size_t s = 0; s < n; ++s) lower(until_[s + 1], m = Most::join(m, own[list(s)][r]));
    m = {};
    lower(from_[n], m);
    for (size_t s = n; s-- > 0;) lower(from_[s], m = Most::join(own[list(s)][r], m));
  }
}

void ColumnReduction::forget_harmless() {
  const int64_t limit = chain_->limit();
  const size_t n = size();
  std::vector<int64_t> most(lists_.size(), -kLargestSum);
  for (size_t l = 0; l < lists_.size(); ++l) {
    for (const Item& x : lists_[l].items) most[l] = std::max(most[l], x.peak);
  }
  std::vector<char> harmful(n);
  for (size_t s = 0; s < n; ++s)
    harmful[s] = until_[s].most.before + most[list(s)] + from_[s + 1].most.after > limit;
  const auto first = static_cast<size_t>(std::find(harmful.begin(), harmful.end(), 1) - harmful.begin());
  size_t last = n;  // one past the last
  while (last > 0 && !harmful[last - 1]) --last;
  // Segments that shared a list and now differ in the amounts that matter get separate lists.
  const std::vector<List> before = std::exchange(lists_, {});
  std::vector<std::array<int, 8>> fresh(before.size(), {-1, -1, -1, -1, -1, -1, -1, -1});
  for (size_t s = 0; s < n; ++s) {
    const bool peak = !harmful[s], after = s <= first, held = s + 1 >= last;
    int& l = fresh[list(s)][static_cast<size_t>(4 * peak + 2 * after + held)];
    if (l < 0) {
      l = static_cast<int>(lists_.size());
      List& list = lists_.emplace_back(before[list_of_[s]]);
      const Stretch least = least_of(list.items);
      for (Item& x : list.items) {
        const Stretch known = x;
        if (peak) x.peak = least.peak;
        if (after) x.after = least.after;
        if (held) x.before = least.before;
        list.minimal &= x.peak == known.peak && x.after == known.after && x.before == known.before;
      }
      if (!std::exchange(list.minimal, true)) drop_dominated_stretches(list.items, list.items.size());
    }
    lists_[static_cast<size_t>(l)].segment = s;
    list_of_[s] = static_cast<uint32_t>(l);
  }
}

}  // namespace osdp::search
