#include "search/labels/labels.hpp"

#include <algorithm>

namespace osdp::search {
namespace {

// Prefix minimum over ranks (a Fenwick tree); ranks start at 1.
class LeastBelow {
 public:
  explicit LeastBelow(size_t ranks) : least_(ranks + 1, kNever) {}
  int64_t at(size_t rank) const {
    int64_t least = kNever;
    for (size_t i = rank; i > 0; i &= i - 1) least = std::min(least, least_[i]);
    return least;
  }
  void put(size_t rank, int64_t value) {
    for (size_t i = rank; i < least_.size(); i += i & (~i + 1)) least_[i] = std::min(least_[i], value);
  }

 private:
  std::vector<int64_t> least_;
};

std::vector<int64_t> sorted_values(const std::vector<Label>& list, int64_t Label::* amount) {
  std::vector<int64_t> values;
  values.reserve(list.size());
  for (const Label& p : list) values.push_back(p.*amount);
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

// The number of sorted `values` that are at most v.
size_t count_up_to(const std::vector<int64_t>& values, int64_t v) {
  return static_cast<size_t>(std::upper_bound(values.begin(), values.end(), v) - values.begin());
}

}  // namespace

uint32_t& UniqueLabels::find(const Label& p) {
  const size_t mask = slots_.size() - 1;
  uint64_t h = static_cast<uint64_t>(p.before) * 0x9E3779B97F4A7C15u ^
               static_cast<uint64_t>(p.peak) * 0xC2B2AE3D27D4EB4Fu;
  h ^= h >> 29;
  for (size_t i = h & mask;; i = (i + 1) & mask) {
    if (slots_[i] == 0) return slots_[i];
    const Label& q = list_[slots_[i] - 1];
    if (q.before == p.before && q.peak == p.peak) return slots_[i];
  }
}

void UniqueLabels::grow() {
  slots_.assign(slots_.size() * 4, 0);
  for (size_t n = 0; n < list_.size(); ++n) find(list_[n]) = static_cast<uint32_t>(n + 1);
}

void drop_dominated(std::vector<Label>& list) {
  std::sort(list.begin(), list.end(), [](const Label& a, const Label& b) {
    return a.time != b.time ? a.time < b.time : a.before != b.before ? a.before < b.before : a.peak < b.peak;
  });
  const auto values = sorted_values(list, &Label::before);
  LeastBelow peaks(values.size());
  size_t kept = 0;
  for (const Label& p : list) {
    const size_t rank = count_up_to(values, p.before);
    if (peaks.at(rank) <= p.peak) continue;
    peaks.put(rank, p.peak);
    list[kept++] = p;
  }
  list.resize(kept);
}

}  // namespace osdp::search
