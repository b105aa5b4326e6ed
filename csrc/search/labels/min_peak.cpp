// Note [Least peak]
// Without time, a partial plan of the first segments has only two amounts: `before` and `peak`
// (Note [Chain resources]). Few of them are undominated, since a choice that is small in one phase is usually
// small in all: a model of 100 blocks takes a millisecond. The least `peak` of a complete plan is the answer.
#include "search/labels/min_peak.hpp"

#include <algorithm>
#include <limits>

#include "search/labels/block_columns.hpp"

namespace osdp::search {
namespace {

constexpr size_t kMostColumns = 2000, kLongest = 20000;

struct Part {
  int64_t before = 0, peak = 0;
  uint32_t parent = 0, item = 0;
};

void drop_dominated(std::vector<Part>& list) {
  std::sort(list.begin(), list.end(), [](const Part& a, const Part& b) {
    return a.before != b.before ? a.before < b.before : a.peak < b.peak;
  });
  search::drop_dominated(list, [](const Part& a, const Part& b) { return a.peak <= b.peak; }, 1);
}

}  // namespace

MinPeak min_peak(const ChainResources& chain, int64_t below, Stopwatch& watch) {
  MinPeak least;
  const size_t n = chain.segments().size();
  const PhasePrices none(std::vector<double>(chain.operators(), 0));
  std::vector<BlockColumns> lists(chain.classes());
  for (const auto& segment : chain.segments()) {
    BlockColumns& list = lists[segment.cls];
    if (!list.list.empty()) continue;
    if (!list_block_columns(chain, segment, none, std::numeric_limits<double>::infinity(), kMostColumns,
                            watch, list))
      return least;
  }
  std::vector<Stretch> rest(n + 1, kNoStretch);  // at least what the segments from s on hold
  for (size_t s = n; s-- > 0;) rest[s] = join(least_of(lists[chain.segments()[s].cls].list), rest[s + 1]);
  std::vector<std::vector<Part>> parts(1, {{0, -kLargestSum, 0, 0}});
  for (size_t s = 0; s < n; ++s) {
    const auto& list = lists[chain.segments()[s].cls].list;
    std::vector<Part> next;
    for (size_t i = 0; i < parts[s].size(); ++i) {
      const Part& x = parts[s][i];
      for (size_t k = 0; k < list.size(); ++k) {
        const Part y{x.before + list[k].before, std::max(x.peak + list[k].after, x.before + list[k].peak),
                     static_cast<uint32_t>(i), static_cast<uint32_t>(k)};
        if (y.peak + rest[s + 1].after < below && y.before + rest[s + 1].peak < below) next.push_back(y);
      }
    }
    const bool stopped = watch.spent(static_cast<int64_t>(5 * parts[s].size() * list.size()));
    drop_dominated(next);
    if (stopped || next.size() > kLongest) return least;
    if (next.empty()) {
      least.complete = true;
      return least;
    }
    parts.push_back(std::move(next));
  }
  least.complete = least.found = true;
  size_t at = parts[n].size() - 1;  // the one with the least peak
  least.peak_bytes = parts[n][at].peak;
  std::vector<Chosen> chosen(n);
  for (size_t s = n; s-- > 0;) {
    chosen[s] = lists[chain.segments()[s].cls].chosen(parts[s + 1][at].item);
    at = parts[s + 1][at].parent;
  }
  least.decision = chain.decide(chosen);
  return least;
}

}  // namespace osdp::search
