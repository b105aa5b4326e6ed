#include "search/level_pairs.hpp"

namespace osdp::search::levels {
namespace {

constexpr int64_t kBitsPerSum = 32;  // of the bit table, of X

}  // namespace

// Calls visit(row of X, y, first z, last z + 1) for all pairs that some sum of that row might complete.
// False as soon as `visit` is.
template <class Visit>
bool Pairs::for_pairs(const Target& target, Visit visit) {
  for (const Row& y : y_.rows) {
    for (const Row& z : z_.rows) {
      const int64_t level = target.level - y.level - z.level;
      const auto x = std::lower_bound(x_.rows.begin(), x_.rows.end(), level,
                                      [](const Row& row, int64_t l) { return row.level < l; });
      if (x == x_.rows.end() || x->level != level) continue;
      const int64_t low = target.low - x_.positions[x->end - 1], high = target.high - x_.positions[x->begin];
      size_t begin = z.end, end = z.end;
      for (size_t i = y.begin; i < y.end; ++i) {
        // Positions of Y rise, so the range of Z falls.
        while (begin > z.begin && z_.positions[begin - 1] >= low - y_.positions[i]) --begin;
        while (end > z.begin && z_.positions[end - 1] > high - y_.positions[i]) --end;
        if (begin < end && !visit(static_cast<size_t>(x - x_.rows.begin()), i, begin, end)) return false;
      }
    }
  }
  return true;
}

// Sets the bits of all high ends of windows that hold a sum of X.
void Pairs::mark(const Target& target) {
  const int64_t width = target.high - target.low;
  bits_.clear();
  int128 span = 0;
  for (const Row& row : x_.rows) {
    bits_.push_back({x_.positions[row.begin], x_.positions[row.end - 1], 0});
    span += static_cast<int128>(bits_.back().last) - bits_.back().first + width + 1;
  }
  shift_ = 0;
  while ((span >> shift_) > kBitsPerSum * static_cast<int64_t>(x_.positions.size()) ||
         (width >> shift_) > 4) {
    ++shift_;
  }
  size_t words = 0;
  for (Bits& row : bits_) {
    row.word = words;
    words += static_cast<size_t>(((row.last - row.first + width) >> shift_) / 64 + 1);
  }
  table_.assign(words, 0);
  starts_.assign(words, 0);
  for (size_t r = 0; r < bits_.size(); ++r) {
    for (size_t i = x_.rows[r].begin; i < x_.rows[r].end; ++i) {
      const int64_t at = x_.positions[i] - bits_[r].first;
      for (int64_t bit = at >> shift_; bit <= (at + width) >> shift_; ++bit) {
        table_[bits_[r].word + static_cast<size_t>(bit / 64)] |= uint64_t{1} << (bit % 64);
      }
    }
    const size_t end = r + 1 < bits_.size() ? bits_[r + 1].word : words;
    size_t i = x_.rows[r].begin;
    for (size_t w = bits_[r].word; w < end; ++w) {
      const auto begin = static_cast<int64_t>(w - bits_[r].word) << shift_ << 6;
      while (i < x_.rows[r].end && x_.positions[i] - bits_[r].first < begin) ++i;
      starts_[w] = static_cast<uint32_t>(i);
    }
  }
  c_.watch.spent(static_cast<int64_t>(words + x_.positions.size()));
}

// Improves the incumbent by the plans on one line until there are none. False when stopped.
bool Pairs::search(Target marked) {
  bool again = true;
  while (again) {
    again = false;
    mark(marked);
    Target now = marked;
    const bool done = for_pairs(marked, [&](size_t row, size_t y, size_t begin, size_t end) {
      left_ -= static_cast<int64_t>(end - begin);
      if (left_ < 0 || c_.watch.spent(static_cast<int64_t>(2 * (end - begin)))) return false;
      const int64_t from = marked.high - y_.positions[y] - bits_[row].first;
      const uint64_t* table = table_.data() + bits_[row].word;
      const int64_t* z = z_.positions.data();
      for (size_t k = begin; k < end; ++k) {
        const auto bit = static_cast<uint64_t>(from - z[k]) >> shift_;
        if ((table[bit / 64] >> (bit % 64) & 1) == 0) continue;
        while (improve(now, row, y, k)) {
          // Narrower windows. Ranges and marks of the old one stay valid; far too wide, they are made anew.
          if (!targets_.aim(now) || c_.good_enough()) return false;
          if (now.high - now.low < (marked.high - marked.low) / 4) {
            marked = now;
            again = now.low <= now.high;
            return false;
          }
        }
      }
      return true;
    });
    if (!done && !again) return now.low > now.high;
  }
  return true;
}

// Accepts y + z and a sum of X with which they lie within the window, if there is one.
bool Pairs::improve(const Target& target, size_t row, size_t y, size_t z) {
  const int64_t at = y_.positions[y] + z_.positions[z];
  const int64_t low = target.low - at, high = target.high - at;
  const int64_t word = std::max<int64_t>(low - bits_[row].first, 0) >> shift_ >> 6;
  size_t x = starts_[bits_[row].word + static_cast<size_t>(word)];
  const size_t end = x_.rows[row].end;
  while (x < end && x_.positions[x] < low) ++x;
  if (x == end || x_.positions[x] > high) return false;
  std::vector<uint32_t> chosen(placed_.size(), 0);
  uint32_t sum = x_.order[x];
  for (size_t j = x_.stages.size() - 1; j > 0; --j) {
    chosen[j - 1] = x_.stages[j][sum].item;
    sum = x_.stages[j][sum].parent;
  }
  for (const auto& [part, place] : {std::pair{&y_, y}, std::pair{&z_, z}}) {
    for (uint32_t i = part->order[place]; i != 0; i = part->sums[i].parent) {
      chosen[part->sums[i].group] = part->sums[i].item;
    }
  }
  Incumbent& best = c_.best;
  for (auto& counts : best.counts) std::fill(counts.begin(), counts.end(), 0);
  best.time_ps = groups_.base.time, best.memory_bytes = groups_.base.memory;
  for (const Items& items : groups_.closed) take(items, 0, best.counts);
  for (size_t g = 0; g < chosen.size(); ++g) {
    const Items& items = groups_.open[placed_[g].group];
    const size_t item = placed_[g].points[chosen[g]].item;
    best.time_ps += items.sums[item].time, best.memory_bytes += items.sums[item].memory;
    take(items, item, best.counts);
  }
  return true;
}

bool Pairs::search(int64_t most) {
  left_ = most;
  bool done = true;
  const std::vector<Target> targets = targets_.all();
  for (Target target : targets) {
    done = done && targets_.aim(target) && (target.low > target.high || search(target));
  }
  c_.statistics.nodes += most - left_;
  c_.statistics.lines += static_cast<int64_t>(targets.size());
  return done;
}

}  // namespace osdp::search::levels
