// Note [Regions]
// At fixed prices a plan costs time + prices x (bytes - limit), which is linear in the batch size b, so the
// least cost over plans is concave in b; and a concave function divided by b attains its minimum over an
// interval at one of the ends. So both ends are evaluated, each with its own time and memory, and the lower
// of the two, per sample, bounds all batch sizes between them. To make both comparable, the plan at the small
// end is scaled to the number of samples of the large end.
#include "search/bounds/region_pricing.hpp"

#include <algorithm>
#include <limits>

namespace osdp::search {

Cheapest::Cheapest(const ColumnPool& pool) : rows_(pool.rows) {
  size_t most = 1;
  for (const auto& entry : pool.entries) {
    for (const auto& way : entry.ways) {
      first_slot_.push_back(slots_.size());
      for (const auto& o : way.slots) {
        if (o.time.empty()) continue;  // no parameters
        slots_.push_back({values_.size(), o.time.size()});
        values_.insert(values_.end(), o.time.begin(), o.time.end());
        values_.insert(values_.end(), o.bytes.begin(), o.bytes.end());
        most = std::max(most, o.time.size());
      }
    }
  }
  first_slot_.push_back(slots_.size());
  option_cost_.resize(most);
  cost_.resize(pool.ways);
  taken_.resize(slots_.size());
}

void Cheapest::find(const Prices& prices, double time_scale) {
  work_ += static_cast<int64_t>(values_.size());
  for (size_t w = 0; w + 1 < first_slot_.size(); ++w) {
    cost_[w] = 0;
    for (size_t s = first_slot_[w]; s < first_slot_[w + 1]; ++s) {
      const size_t n = slots_[s].options;
      const double* v = &values_[slots_[s].begin];
      for (size_t k = 0; k < n; ++k) option_cost_[k] = time_scale * v[k];
      for (size_t j = 0; j < rows_; ++j) {
        if (prices[j] == 0) continue;
        const double* bytes = v + (j + 1) * n;
        for (size_t k = 0; k < n; ++k) option_cost_[k] += prices[j] * bytes[k];
      }
      const auto least =
          std::min_element(option_cost_.begin(), option_cost_.begin() + static_cast<std::ptrdiff_t>(n));
      cost_[w] += *least;
      taken_[s] = static_cast<uint32_t>(least - option_cost_.begin());
    }
  }
}

void Cheapest::add(size_t way, double count, double& time, Prices& bytes) const {
  for (size_t s = first_slot_[way]; s < first_slot_[way + 1]; ++s) {
    const size_t n = slots_[s].options;
    const double* v = &values_[slots_[s].begin] + taken_[s];
    time += count * v[0];
    for (size_t j = 0; j < rows_; ++j) bytes[j] += count * v[(j + 1) * n];
  }
}

Evaluator::Evaluator(const EquivalenceClasses& classes, const ColumnPool& pool, const Request& request,
                     const Region& region, Cheapest& cheapest)
    : pool_(pool), region_(region), rows_(pool.rows), cheapest_(cheapest) {
  const auto acc = static_cast<double>(region.hi.accumulation);
  const double held = classes.held.at(static_cast<double>(region.lo.size));
  for (size_t j = 0; j < rows_; ++j) limit_[j] = static_cast<double>(request.limit_bytes) - held;
  for (const int64_t size : {region.lo.size, region.hi.size}) {
    if (!ends_.empty() && size == ends_[0].size) continue;
    End& end = ends_.emplace_back();
    end.size = size;
    end.scale = static_cast<double>(region.hi.size) / static_cast<double>(size);
    const auto b = static_cast<double>(size);
    end.time = acc * classes.compute_ps.at(b);
    end.held = classes.held.at(b) - held;
    end.ways.reserve(pool.ways);
    for (const auto& entry : pool.entries) {
      for (const auto& way : entry.ways) {
        Own& own = end.ways.emplace_back();
        own.time = acc * way.recompute_ps.at(b);
        for (size_t j = 0; j < rows_; ++j) own.bytes[j] = way.kept[j].at(b);
      }
    }
  }
}

// Assigns as many instances as possible to the cheapest way, then to the next.
double Evaluator::fill(const ColumnPool::Entry& entry, const double* cost, int* taken) const {
  const size_t n = entry.ways.size();
  const int* lo = &region_.box.lo[entry.first_way];
  const int* hi = &region_.box.hi[entry.first_way];
  int left = entry.count;
  double sum = 0;
  for (size_t w = 0; w < n; ++w) {
    left -= taken[w] = lo[w];
    sum += lo[w] * cost[w];
  }
  while (left > 0) {
    size_t best = n;
    for (size_t w = 0; w < n; ++w) {
      if (taken[w] < hi[w] && (best == n || cost[w] < cost[best])) best = w;
    }
    const int more = std::min(left, hi[best] - taken[best]);
    taken[best] += more;
    left -= more;
    sum += more * cost[best];
  }
  return sum;
}

void Evaluator::at(const Prices& prices, double time_scale, Point& p) {
  cheapest_.find(prices, time_scale);
  double price = 0, limit = 0;
  for (size_t j = 0; j < rows_; ++j) price += prices[j], limit += prices[j] * limit_[j];
  double least = std::numeric_limits<double>::infinity();
  const End* chosen = nullptr;
  double cost[3];
  int taken[3];
  const auto own_cost = [&](const Own& o) {
    double sum = time_scale * o.time;
    for (size_t j = 0; j < rows_; ++j) sum += prices[j] * o.bytes[j];
    return sum;
  };
  const auto costs_of = [&](const ColumnPool::Entry& entry, const End& end) {
    for (size_t w = 0; w < entry.ways.size(); ++w)
      cost[w] = own_cost(end.ways[entry.first_way + w]) + cheapest_.cost(entry.first_way + w);
  };
  for (const End& end : ends_) {
    double total = time_scale * end.time + price * end.held - limit;
    for (const auto& entry : pool_.entries) {
      costs_of(entry, end);
      total += fill(entry, cost, taken);
    }
    if (end.scale * total < least) least = end.scale * total, chosen = &end;
    if (time_scale == 0) break;  // for memory alone the smallest batch is best
  }
  p.time = chosen->time;
  p.bytes.fill(0);
  p.scale = chosen->scale, p.size = chosen->size;
  p.ways.assign(pool_.ways, 0);
  for (const auto& entry : pool_.entries) {
    costs_of(entry, *chosen);
    fill(entry, cost, &p.ways[entry.first_way]);
    for (size_t w = 0; w < entry.ways.size(); ++w) {
      const int count = p.ways[entry.first_way + w];
      if (count == 0) continue;
      const Own& o = chosen->ways[entry.first_way + w];
      p.time += count * o.time;
      for (size_t j = 0; j < rows_; ++j) p.bytes[j] += count * o.bytes[j];
      cheapest_.add(entry.first_way + w, count, p.time, p.bytes);
    }
  }
  p.time *= p.scale;
  for (size_t j = 0; j < rows_; ++j) {
    p.bytes[j] = limit_[j] + p.scale * (p.bytes[j] + chosen->held - limit_[j]);
  }
}

}  // namespace osdp::search
