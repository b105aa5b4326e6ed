#include "search/level_rest.hpp"

namespace osdp::search::levels {
namespace {

constexpr int64_t kMostTableSteps = 1 << 20;  // items times levels

}  // namespace

bool Rest::limit_levels(const std::vector<Placed>& all, const std::vector<Target>& targets) {
  int64_t items = 0, down = 0, up = 0;
  for (const Placed& placed : all) {
    int64_t low = 0, high = 0;
    for (const Point& p : placed.points) {
      low = std::min<int64_t>(low, p.level), high = std::max<int64_t>(high, p.level);
    }
    items += static_cast<int64_t>(placed.points.size());
    down += low, up += high;
  }
  lowest_ = down, highest_ = up;
  for (const Target& t : targets) {
    lowest_ = std::min(lowest_, t.level - up), highest_ = std::max(highest_, t.level - down);
  }
  const int64_t levels = highest_ - lowest_ + 1;
  return levels <= kMostLevels && levels * items <= kMostTableSteps;
}

void Rest::start(size_t groups, const std::vector<Target>& targets) {
  rest_.assign(groups + 1, std::vector<int64_t>(static_cast<size_t>(highest_ - lowest_ + 1), kLargestSum));
  for (const Target& t : targets) rest_.back()[static_cast<size_t>(t.level - lowest_)] = 0;
}

void Rest::complete(const std::vector<Placed>& placed, size_t first, Stopwatch& watch) {
  for (size_t g = placed.size(); g-- > first;) {
    std::fill(rest_[g].begin(), rest_[g].end(), kLargestSum);
    for (const Point& p : placed[g].points) {
      const int64_t begin = std::max(lowest_, lowest_ - p.level),
                    end = std::min(highest_, highest_ - p.level);
      for (int64_t level = begin; level <= end; ++level) {
        const int64_t then = at(g + 1, level + p.level);
        auto& least = rest_[g][static_cast<size_t>(level - lowest_)];
        if (then < kLargestSum) least = std::min(least, then + p.reduced);
      }
    }
    watch.spent(static_cast<int64_t>(placed[g].points.size()) * (highest_ - lowest_ + 1));
  }
}

void Rest::fold(const std::vector<Row>& part) {
  const std::vector<int64_t> then = rest_.back();
  auto& now = rest_.back();
  std::fill(now.begin(), now.end(), kLargestSum);
  for (const Row& row : part) {
    for (int64_t level = lowest_; level <= highest_; ++level) {
      const int64_t to = level + row.level;
      if (to < lowest_ || to > highest_) continue;
      const int64_t after = then[static_cast<size_t>(to - lowest_)];
      auto& best = now[static_cast<size_t>(level - lowest_)];
      if (after < kLargestSum) best = std::min(best, after + row.least_reduced);
    }
  }
}

}  // namespace osdp::search::levels
