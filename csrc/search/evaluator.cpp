#include "search/evaluator.hpp"

#include <algorithm>

namespace osdp::search {

Cheapest::Cheapest(const Table& table, int64_t largest_transient) : rows_(table.rows) {
  size_t most = 1;
  for (const auto& entry : table.entries) {
    for (const auto& way : entry.ways) {
      first_slot_.push_back(slots_.size());
      for (const auto& o : way.slots) {
        const size_t begin = values_.size(), all = o.time.size();
        const auto in = [&](size_t k) { return o.transient[k] <= largest_transient && o.corner[k]; };
        for (size_t k = 0; k < all; ++k) {
          if (in(k)) values_.push_back(o.time[k]);
        }
        const size_t n = values_.size() - begin;
        for (size_t j = 0; j < rows_; ++j) {
          for (size_t k = 0; k < all; ++k) {
            if (in(k)) values_.push_back(o.bytes[j * all + k]);
          }
        }
        slots_.push_back({begin, n});
        most = std::max(most, n);
      }
    }
  }
  first_slot_.push_back(slots_.size());
  sums_.resize(table.ways);
  cost_.resize(most);
}

const std::vector<Cheapest::Sum>& Cheapest::at(const Prices& prices, double time_scale) {
  if (time_scale == last_scale_ && prices == last_prices_) return sums_;
  last_scale_ = time_scale, last_prices_ = prices;
  for (size_t w = 0; w < sums_.size(); ++w) {
    sums_[w] = {};
    for (size_t s = first_slot_[w]; s < first_slot_[w + 1]; ++s) add(slots_[s], prices, time_scale, sums_[w]);
  }
  return sums_;
}

void Cheapest::add(const Slice& s, const Prices& prices, double time_scale, Sum& sum) {
  const size_t n = s.options;
  const double* v = &values_[s.begin];
  for (size_t k = 0; k < n; ++k) cost_[k] = time_scale * v[k];
  for (size_t j = 0; j < rows_; ++j) {
    const double price = prices[j];
    if (price == 0) continue;
    const double* bytes = v + (j + 1) * n;
    for (size_t k = 0; k < n; ++k) cost_[k] += price * bytes[k];
  }
  size_t best = 0;
  for (size_t k = 1; k < n; ++k) {
    if (cost_[k] < cost_[best]) best = k;
  }
  sum.time += v[best];
  for (size_t j = 0; j < rows_; ++j) sum.bytes[j] += v[(j + 1) * n + best];
}

Evaluator::Evaluator(const Kinds& kinds, const Table& table, const Request& request, const Region& region,
                     Cheapest& cheapest)
    : table_(table), region_(region), rows_(table.rows), cheapest_(cheapest) {
  const double acc = static_cast<double>(region.fastest.accumulation);
  constant_time_ = acc * static_cast<double>(kinds.compute_ps(region.fastest.size));
  for (size_t j = 0; j < rows_; ++j) {
    limit_[j] = static_cast<double>(request.limit_bytes - region.reserved_bytes) -
                static_cast<double>(kinds.held_bytes(region.leanest.size));
  }
  ways_.reserve(table.ways);
  for (const auto& entry : table.entries) {
    for (const auto& way : entry.ways) {
      auto& own = ways_.emplace_back();
      own.time = acc * static_cast<double>(region.fastest.size) * static_cast<double>(way.time_per_sample);
      for (size_t j = 0; j < rows_; ++j) own.bytes[j] = static_cast<double>(way.kept[j](region.leanest.size));
    }
  }
}

void Evaluator::at(const Prices& prices, double time_scale, Point& p) {
  p.time = constant_time_;
  p.bytes.fill(0);
  p.ways.assign(table_.ways, 0);
  const auto& operators = cheapest_.at(prices, time_scale);
  double cost[3];
  for (const auto& entry : table_.entries) {
    const size_t n = entry.ways.size();
    for (size_t w = 0; w < n; ++w) {
      const auto &own = ways_[entry.first_way + w], &sum = operators[entry.first_way + w];
      cost[w] = time_scale * (own.time + sum.time);
      for (size_t j = 0; j < rows_; ++j) cost[w] += prices[j] * (own.bytes[j] + sum.bytes[j]);
    }
    // As many as possible take the cheapest way.
    const int* lo = &region_.box.lo[entry.first_way];
    const int* hi = &region_.box.hi[entry.first_way];
    int* taken = &p.ways[entry.first_way];
    int left = entry.count;
    for (size_t w = 0; w < n; ++w) left -= taken[w] = lo[w];
    while (left > 0) {
      size_t best = n;
      for (size_t w = 0; w < n; ++w) {
        if (taken[w] < hi[w] && (best == n || cost[w] < cost[best])) best = w;
      }
      const int more = std::min(left, hi[best] - taken[best]);
      taken[best] += more;
      left -= more;
    }
    for (size_t w = 0; w < n; ++w) {
      if (taken[w] == 0) continue;
      const auto &own = ways_[entry.first_way + w], &sum = operators[entry.first_way + w];
      p.time += taken[w] * (own.time + sum.time);
      for (size_t j = 0; j < rows_; ++j) p.bytes[j] += taken[w] * (own.bytes[j] + sum.bytes[j]);
    }
  }
}

}  // namespace osdp::search
