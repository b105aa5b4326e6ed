// Note [Regions]
// At fixed prices a plan costs time + prices x (bytes - limit), which is linear in the batch size b, so the
// least cost over plans is concave in b; and a concave function divided by b attains its minimum over an
// interval at one of the ends. So both ends are evaluated, each with its own time and memory, and the lower
// of the two, per sample, bounds all batch sizes between them. To make both comparable, the plan at the small
// end is scaled to the number of samples of the large end.
//
// Each value of the largest transient is evaluated, with its reserve and, for every slot, the cheapest option
// whose transient is no larger; one scan of the options by ascending transient finds these for all values. If
// there are very many values, neighbours share a band.
#include "search/bounds/region_pricing.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace osdp::search {

Cheapest::Cheapest(const ColumnPool& pool, const std::vector<int64_t>& transients)
    : rows_(pool.rows), stride_(std::min(Bands::kMost, transients.size())), transients_(transients) {
  size_t most = 1;
  std::vector<size_t> order;
  for (const auto& entry : pool.entries) {
    for (const auto& way : entry.ways) {
      first_slot_.push_back(slots_.size());
      for (const auto& o : way.slots) {
        if (o.time.empty()) continue;  // no parameters
        order.resize(o.time.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](size_t a, size_t b) { return o.transient[a] < o.transient[b]; });
        slots_.push_back({values_.size(), order.size(), sizes_.size()});
        for (size_t k : order) sizes_.push_back(o.transient[k]);
        for (size_t k : order) values_.push_back(o.time[k]);
        for (size_t j = 0; j < rows_; ++j) {
          for (size_t k : order) values_.push_back(o.bytes[j * o.time.size() + k]);
        }
        most = std::max(most, order.size());
      }
    }
  }
  first_slot_.push_back(slots_.size());
  option_cost_.resize(most);
  cost_.resize(pool.ways * stride_);
  taken_.resize(slots_.size() * stride_);
}

void Cheapest::find(const Prices& prices, double time_scale, const Bands& bands) {
  const size_t count = bands.count();
  last_.resize(count);
  for (size_t b = 0; b < count; ++b) last_[b] = transients_[bands.last(b)];
  for (size_t w = 0; w + 1 < first_slot_.size(); ++w) {
    double* sum = &cost_[w * stride_];
    std::fill(sum, sum + count, 0);
    for (size_t s = first_slot_[w]; s < first_slot_[w + 1]; ++s) {
      const size_t all = slots_[s].options;
      const int64_t* sizes = &sizes_[slots_[s].sizes];
      size_t n = all;
      while (n > 0 && sizes[n - 1] > last_[count - 1]) --n;
      const double* v = &values_[slots_[s].begin];
      for (size_t k = 0; k < n; ++k) option_cost_[k] = time_scale * v[k];
      for (size_t j = 0; j < rows_; ++j) {
        if (prices[j] == 0) continue;
        const double* bytes = v + (j + 1) * all;
        for (size_t k = 0; k < n; ++k) option_cost_[k] += prices[j] * bytes[k];
      }
      double least = std::numeric_limits<double>::infinity();
      uint32_t best = 0, k = 0;
      uint32_t* taken = &taken_[s * stride_];
      for (size_t b = 0; b < count; ++b) {
        for (; k < n && sizes[k] <= last_[b]; ++k) {
          if (option_cost_[k] < least) least = option_cost_[k], best = k;
        }
        sum[b] += least;
        taken[b] = best;
      }
    }
  }
}

void Cheapest::add(size_t way, size_t band, double count, double& time, Prices& bytes) const {
  for (size_t s = first_slot_[way]; s < first_slot_[way + 1]; ++s) {
    const size_t n = slots_[s].options;
    const double* v = &values_[slots_[s].begin] + taken_[s * stride_ + band];
    time += count * v[0];
    for (size_t j = 0; j < rows_; ++j) bytes[j] += count * v[(j + 1) * n];
  }
}

Evaluator::Evaluator(const EquivalenceClasses& classes, const ColumnPool& pool, const Request& request,
                     const Region& region, Cheapest& cheapest)
    : pool_(pool),
      region_(region),
      rows_(pool.rows),
      cheapest_(cheapest),
      bands_{region.transient_lo, region.transient_hi} {
  const auto transient_lo = request.reserve_bytes(classes.transients[region.transient_lo]);
  for (size_t b = 0; b < bands_.count(); ++b) {
    reserve_.push_back(
        static_cast<double>(request.reserve_bytes(classes.transients[bands_.first(b)]) - transient_lo));
  }
  const auto acc = static_cast<double>(region.hi.accumulation);
  const Linear& held_bytes = classes.held_bytes(region.hi.accumulation);
  const double held = held_bytes.at(static_cast<double>(region.lo.size));
  for (size_t j = 0; j < rows_; ++j) {
    limit_[j] = static_cast<double>(request.limit_bytes - transient_lo) - held;
  }
  for (const int64_t size : {region.lo.size, region.hi.size}) {
    if (!ends_.empty() && size == ends_[0].size) continue;
    End& end = ends_.emplace_back();
    end.size = size;
    end.scale = static_cast<double>(region.hi.size) / static_cast<double>(size);
    const auto b = static_cast<double>(size);
    end.time = acc * classes.compute_ps.at(b);
    end.held = held_bytes.at(b) - held;
    end.ways.reserve(pool.ways);
    for (const auto& entry : pool.entries) {
      for (const auto& way : entry.ways) {
        Own& own = end.ways.emplace_back();
        own.time = acc * way.recompute_ps.at(b);
        for (size_t j = 0; j < rows_; ++j) own.bytes[j] = way.kept[j].at(b);
      }
    }
  }
  total_.resize(reserve_.size());
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
  cheapest_.find(prices, time_scale, bands_);
  double price = 0, limit = 0;
  for (size_t j = 0; j < rows_; ++j) price += prices[j], limit += prices[j] * limit_[j];
  double least = std::numeric_limits<double>::infinity();
  const End* chosen = nullptr;
  size_t band = 0;
  double cost[3];
  int taken[3];
  const auto own_cost = [&](const Own& o) {
    double sum = time_scale * o.time;
    for (size_t j = 0; j < rows_; ++j) sum += prices[j] * o.bytes[j];
    return sum;
  };
  for (const End& end : ends_) {
    for (size_t t = 0; t < total_.size(); ++t) {
      total_[t] = time_scale * end.time + price * (end.held + reserve_[t]) - limit;
    }
    for (const auto& entry : pool_.entries) {
      const size_t n = entry.ways.size();
      const double* sums[3];
      double own[3];
      bool free = true;
      for (size_t w = 0; w < n; ++w) {
        own[w] = own_cost(end.ways[entry.first_way + w]);
        sums[w] = cheapest_.cost(entry.first_way + w);
        free &=
            region_.box.lo[entry.first_way + w] == 0 && region_.box.hi[entry.first_way + w] == entry.count;
      }
      const double count = entry.count;
      for (size_t t = 0; t < total_.size(); ++t) {
        for (size_t w = 0; w < n; ++w) cost[w] = own[w] + sums[w][t];
        total_[t] += free || n == 1 ? count * *std::min_element(cost, cost + n) : fill(entry, cost, taken);
      }
    }
    for (size_t t = 0; t < total_.size(); ++t) {
      if (end.scale * total_[t] < least) {
        least = end.scale * total_[t];
        chosen = &end;
        band = t;
      }
    }
    if (time_scale == 0) break;  // for memory alone the smallest batch is best
  }
  p.time = chosen->time;
  p.bytes.fill(0);
  p.scale = chosen->scale, p.size = chosen->size;
  p.transient = (bands_.first(band) + bands_.last(band)) / 2;
  p.ways.assign(pool_.ways, 0);
  for (const auto& entry : pool_.entries) {
    const size_t n = entry.ways.size();
    for (size_t w = 0; w < n; ++w) {
      const size_t way = entry.first_way + w;
      cost[w] = own_cost(chosen->ways[way]) + cheapest_.cost(way)[band];
    }
    fill(entry, cost, &p.ways[entry.first_way]);
    for (size_t w = 0; w < n; ++w) {
      const int count = p.ways[entry.first_way + w];
      if (count == 0) continue;
      const Own& o = chosen->ways[entry.first_way + w];
      p.time += count * o.time;
      for (size_t j = 0; j < rows_; ++j) p.bytes[j] += count * o.bytes[j];
      cheapest_.add(entry.first_way + w, band, count, p.time, p.bytes);
    }
  }
  p.time *= p.scale;
  const double beside = chosen->held + reserve_[band];
  for (size_t j = 0; j < rows_; ++j) {
    p.bytes[j] = limit_[j] + p.scale * (p.bytes[j] + beside - limit_[j]);
  }
}

}  // namespace osdp::search
