// Note [Levels]
// All plans that the open groups still allow lie on a lattice (lattice.hpp). Where that lattice is coarse, few
// of its lines cross the triangle of better plans (within the limit, above the Lagrangian line, faster than
// the incumbent), and on each line only a short window of points lies in it. The paper's formulas make such
// lattices: a line is a number of messages, a point on it a number of bytes; even where all operators
// differ, the optimum is then a sum of given size and number of terms, which no bound tells.
// 1. Basis: u as short as possible where times and priced bytes count alike, so that lines are far apart;
//    v leads from line to line. An item is then (level, position): level * v + position * u.
// 2. The groups are parted in three, and the sums of each part are listed: X over the most critical groups, Y
//    and Z over the others. What is wanted are x + y + z on a target's line, within its window.
// 3. X is marked in a small bit table, one row per level, blurred by the window's width. All pairs of Y and
//    Z that X could complete are run through: one look at the table each, a few percent have to be looked up
//    in X. Neither sorting nor storing is done for the pairs, which are by far the most.
// 4. A sum is listed only if some completion, given the levels, still has small enough reduced costs: a table
//    by group and level (`rest_`), computed backwards.
// 5. How many pairs there are is known before they are looked at. Too many: X is grown, and Y and Z shrink.
#include "search/levels.hpp"

#include <array>
#include <cmath>

#include "search/items.hpp"
#include "search/lattice.hpp"

namespace osdp::search {
namespace {

constexpr int64_t kFar = int64_t{1} << 60;       // coordinates beyond this: not for this technique
constexpr int64_t kMostTargets = 64;             // lines that cross the triangle
constexpr int64_t kMostLevels = 4096;            // levels of partial sums
constexpr int64_t kMostTableSteps = 1 << 20;     // work for rest_
constexpr size_t kMostSums[] = {size_t{1} << 10, size_t{1} << 13, size_t{1} << 16,
                                size_t{1} << 18};  // of X, one attempt after the other
constexpr int64_t kPairsPerSum = 64;             // pairs looked at in one attempt, per sum of X
constexpr int64_t kBitsPerSum = 32;              // of the table

int128 floor_div(int128 n, int128 d) {
  const int128 q = n / d;
  return (n % d != 0 && ((n < 0) != (d < 0))) ? q - 1 : q;
}

struct Vector {
  int128 time = 0, memory = 0;
};

// An item in the lattice's coordinates, or a partial sum: a tree, where a sum is its parent and one item.
struct Point {
  int64_t position = 0, reduced = 0;
  int32_t level = 0;
  uint32_t parent = 0;
  uint32_t group = 0, item = 0;  // indices into placed_ and its points; of an item: into Items::sums
};

// Plans on one line that are better than the incumbent: positions low..high.
struct Target {
  int64_t level = 0, low = 0, high = -1;
};

// The sums over some of the groups.
struct Part {
  size_t first = 0, end = 0;  // its groups, in the order of placed_
  std::vector<Point> sums;    // Y and Z: a tree, sums[0] is where every group takes its first item
  std::vector<std::vector<Point>> stages;  // X: stages[j] are the sums over the first j groups, sorted
  // The sums over all its groups, sorted by level and position, equal places once:
  struct Row {
    int64_t level = 0;
    size_t begin = 0, end = 0;
    int64_t least_reduced = 0;
  };
  std::vector<Row> rows;
  std::vector<int64_t> positions;
  std::vector<uint32_t> order;  // order[i]: index into sums of positions[i]
};

struct Key {
  int64_t position = 0;
  uint32_t sum = 0;
};

class Levels {
 public:
  explicit Levels(Context& context) : c_(context) {}
  bool run();

 private:
  bool choose_basis();
  bool place_items();
  bool aim();
  bool aim(Target& target);
  bool limit_levels();
  void start_rest();
  void complete_rest(size_t first);
  void fold(const Part& part);
  bool add_group(Part& part, size_t most);
  bool walk(Part& part, size_t next, uint32_t from, size_t most);
  void sort(Part& part);
  bool make_parts(size_t most);
  template <class Visit>
  bool for_pairs(const Target& target, Visit visit);
  void mark(const Target& target);
  bool search(Target target);
  bool search_targets();
  bool improve(const Target& target, size_t row, size_t y, size_t z);

  int64_t rest(size_t g, int64_t level) const {
    return level < lowest_ || level > highest_ ? kLargestSum
                                               : rest_[g][static_cast<size_t>(level - lowest_)];
  }

  Context& c_;
  OpenGroups groups_;
  Vector start_;  // the sum of all groups' first items: level 0, position 0
  Vector u_, v_;
  int128 det_ = 0;  // v x u; items' coordinates divide by it
  struct Placed {
    size_t group = 0;           // index into groups_.open
    std::vector<Point> points;  // by reduced cost; points[0] is (0, 0)
  };
  std::vector<Placed> placed_;  // the most critical first; after make_parts() X's, Y's, Z's
  std::vector<Target> targets_;
  int64_t lowest_ = 0, highest_ = 0;        // levels of partial sums
  std::vector<std::vector<int64_t>> rest_;  // [g][level - lowest_]: least reduced costs from there to a target

  Part x_, y_, z_;
  struct Bits {
    int64_t first = 0;  // position of the first bit
    int64_t last = -1;  // position of X's last sum
    size_t word = 0;    // where its bits begin
  };
  std::vector<Bits> bits_;  // per row of X
  std::vector<uint64_t> table_;
  std::vector<uint32_t> starts_;  // per word of table_: the first of X's positions that lies in it or later
  std::vector<Key> keys_;
  std::vector<Point> scratch_;
  int64_t pairs_left_ = 0;
  int shift_ = 0;  // a bit stands for 2^shift_ positions
};

size_t cheapest_item(const Items& items) {
  size_t first = 0;
  for (size_t i = 1; i < items.sums.size(); ++i) {
    if (items.sums[i].reduced < items.sums[first].reduced) first = i;
  }
  return first;
}

// Gauss's reduction of the lattice's basis, under the norm time^2 + (lambda memory)^2: any basis is valid, so
// rounding only costs quality.
bool Levels::choose_basis() {
  Lattice lattice;
  for (const Items& items : groups_.open) {
    for (const Sum& s : items.sums) extend(lattice, items.sums[0].time - s.time, items.sums[0].memory - s.memory);
  }
  if (lattice.d == 0 || lattice.a == 0) return false;
  lattice.base_time_ps = static_cast<int64_t>(start_.time);
  lattice.base_memory_bytes = static_cast<int64_t>(start_.memory);
  // Better plans lie on this lattice, so none of them is faster than its bound.
  c_.raise_bound(std::min(c_.best.time_ps, lattice_bound(lattice, c_.limit_bytes, c_.relaxed.lower_bound_ps,
                                                         c_.relaxed.multiplier)));
  const long double price = static_cast<long double>(c_.relaxed.multiplier.numerator) /
                            static_cast<long double>(c_.relaxed.multiplier.denominator);
  const auto dot = [&](const Vector& a, const Vector& b) {
    return static_cast<long double>(a.time) * static_cast<long double>(b.time) +
           price * static_cast<long double>(a.memory) * price * static_cast<long double>(b.memory);
  };
  u_ = {0, lattice.d}, v_ = {lattice.a, lattice.b};
  for (int step = 0; step < 200; ++step) {
    if (dot(v_, v_) < dot(u_, u_)) std::swap(u_, v_);
    const auto times = static_cast<int128>(std::round(dot(u_, v_) / dot(u_, u_)));
    if (times == 0) break;
    v_ = {v_.time - times * u_.time, v_.memory - times * u_.memory};
  }
  for (int128 x : {u_.time, u_.memory, v_.time, v_.memory}) {
    if (x > kFar || x < -kFar) return false;
  }
  // More positions shall be more memory, or as much memory and less time.
  if (u_.memory < 0 || (u_.memory == 0 && u_.time > 0)) u_ = {-u_.time, -u_.memory};
  det_ = v_.time * u_.memory - v_.memory * u_.time;
  return det_ != 0;
}

bool Levels::place_items() {
  for (size_t g = groups_.open.size(); g-- > 0;) {
    const auto& sums = groups_.open[g].sums;
    const size_t first = cheapest_item(groups_.open[g]);
    Placed& placed = placed_.emplace_back();
    placed.group = g;
    for (size_t i = 0; i < sums.size(); ++i) {
      const int128 time = sums[i].time - sums[first].time, memory = sums[i].memory - sums[first].memory;
      const int128 level = (time * u_.memory - memory * u_.time) / det_;
      const int128 position = (v_.time * memory - v_.memory * time) / det_;
      if (level > kMostLevels || level < -kMostLevels || position > kFar || position < -kFar) return false;
      placed.points.push_back({static_cast<int64_t>(position), sums[i].reduced, static_cast<int32_t>(level), 0,
                               0, static_cast<uint32_t>(i)});
    }
    std::stable_sort(placed.points.begin(), placed.points.end(),
                     [](const Point& a, const Point& b) { return a.reduced < b.reduced; });
  }
  return true;
}

// The window of the same line for the incumbent of now; empty where there is none. False where aim() is.
bool Levels::aim(Target& target) {
  if (!aim()) return false;
  const auto same = std::find_if(targets_.begin(), targets_.end(),
                                 [&](const Target& t) { return t.level == target.level; });
  target = same == targets_.end() ? Target{target.level, 0, -1} : *same;
  return true;
}

// The lines that cross the triangle, and their windows. False if there are too many.
bool Levels::aim() {
  targets_.clear();
  // start + level v + position u: memory <= limit, time <= best - step, time + lambda memory >= line.
  const int128 room = c_.limit_bytes - start_.memory;
  const int128 time = c_.best.time_ps - c_.step_ps - start_.time;
  const int128 p = c_.relaxed.multiplier.numerator, q = c_.relaxed.multiplier.denominator;
  const int128 height = c_.best.time_ps - c_.step_ps - c_.relaxed.lower_bound_ps + 1;  // of the triangle
  if (height <= 0 || p == 0) return true;
  const int128 width = height * q / p + 1;
  int128 low = 0, high = 0;
  bool any = false;
  const auto corner = [&](int128 t, int128 m) {
    const int128 level = floor_div(t * u_.memory - m * u_.time, det_);
    low = any ? std::min(low, level) : level;
    high = any ? std::max(high, level + 1) : level + 1;
    any = true;
  };
  if (width > kFar) return false;
  corner(time, room), corner(time - height, room), corner(time, room - width);
  if (high - low > kMostTargets) return false;
  for (int128 level = low; level <= high; ++level) {
    int128 least = -kFar, most = kFar;
    // slope * position <= bound
    const auto cut = [&](int128 slope, int128 bound) {
      if (slope > 0) {
        most = std::min(most, floor_div(bound, slope));
      } else if (slope < 0) {
        least = std::max(least, -floor_div(bound, -slope));
      } else if (bound < 0) {
        most = least - 1;
      }
    };
    cut(u_.memory, room - level * v_.memory);
    cut(u_.time, time - level * v_.time);
    cut(-u_.memory, width - room + level * v_.memory);
    cut(-u_.time, height - time + level * v_.time);
    if (least > most) continue;
    if (least == -kFar || most == kFar) return false;
    targets_.push_back({static_cast<int64_t>(level), static_cast<int64_t>(least), static_cast<int64_t>(most)});
  }
  return true;
}

// How far the levels of partial sums go. False if the tables would be too much work.
bool Levels::limit_levels() {
  int64_t items = 0, down = 0, up = 0;
  for (const Placed& placed : placed_) {
    int64_t low = 0, high = 0;
    for (const Point& p : placed.points) {
      low = std::min<int64_t>(low, p.level), high = std::max<int64_t>(high, p.level);
    }
    items += static_cast<int64_t>(placed.points.size());
    down += low, up += high;
  }
  lowest_ = down, highest_ = up;
  for (const Target& t : targets_) {
    lowest_ = std::min(lowest_, t.level - up), highest_ = std::max(highest_, t.level - down);
  }
  const int64_t levels = highest_ - lowest_ + 1;
  return levels <= kMostLevels && levels * items <= kMostTableSteps;
}

void Levels::start_rest() {
  rest_.assign(placed_.size() + 1,
               std::vector<int64_t>(static_cast<size_t>(highest_ - lowest_ + 1), kLargestSum));
  for (const Target& t : targets_) rest_.back()[static_cast<size_t>(t.level - lowest_)] = 0;
}

// rest_[first..] by dynamic programming, backwards from rest_.back().
void Levels::complete_rest(size_t first) {
  for (size_t g = placed_.size(); g-- > first;) {
    std::fill(rest_[g].begin(), rest_[g].end(), kLargestSum);
    for (const Point& p : placed_[g].points) {
      const int64_t begin = std::max(lowest_, lowest_ - p.level), end = std::min(highest_, highest_ - p.level);
      for (int64_t level = begin; level <= end; ++level) {
        const int64_t then = rest(g + 1, level + p.level);
        auto& least = rest_[g][static_cast<size_t>(level - lowest_)];
        if (then < kLargestSum) least = std::min(least, then + p.reduced);
      }
    }
    c_.watch.spent(static_cast<int64_t>(placed_[g].points.size()) * (highest_ - lowest_ + 1));
  }
}

// From now on `part` comes after all other groups.
void Levels::fold(const Part& part) {
  const std::vector<int64_t> then = rest_.back();
  auto& now = rest_.back();
  std::fill(now.begin(), now.end(), kLargestSum);
  for (const Part::Row& row : part.rows) {
    for (int64_t level = lowest_; level <= highest_; ++level) {
      const int64_t to = level + row.level;
      if (to < lowest_ || to > highest_) continue;
      const int64_t after = then[static_cast<size_t>(to - lowest_)];
      auto& best = now[static_cast<size_t>(level - lowest_)];
      if (after < kLargestSum) best = std::min(best, after + row.least_reduced);
    }
  }
}

bool by_place(const Point& a, const Point& b) {
  return a.level != b.level ? a.level < b.level : a.position < b.position;
}

// One group more for X. False, and X as it was, if it would have more than `most` sums.
bool Levels::add_group(Part& part, size_t most) {
  const auto& points = placed_[part.end].points;
  const auto& from = part.stages.back();
  if (from.size() > most * 2 / 3) return false;  // one more would be too many, mostly
  const int64_t allowed = c_.allowance();
  std::vector<Point> list;
  list.reserve(std::min(from.size() * points.size(), 2 * most));
  std::vector<size_t> starts;
  for (size_t i = 0; i < points.size(); ++i) {
    starts.push_back(list.size());
    for (size_t s = 0; s < from.size(); ++s) {
      const int64_t reduced = from[s].reduced + points[i].reduced;
      const int32_t level = from[s].level + points[i].level;
      if (reduced + rest(part.end + 1, level) > allowed) continue;
      list.push_back({from[s].position + points[i].position, reduced, level, static_cast<uint32_t>(s),
                      static_cast<uint32_t>(part.end), static_cast<uint32_t>(i)});
    }
    if (list.size() == starts.back()) starts.pop_back();
    if (list.size() > most + most / 2 || c_.watch.spent(static_cast<int64_t>(2 * from.size()))) return false;
  }
  merge_runs(list, std::move(starts), scratch_, by_place);
  // Of equal places any will do; their reduced costs differ by rounding only.
  list.erase(std::unique(list.begin(), list.end(),
                         [](const Point& a, const Point& b) {
                           return a.level == b.level && a.position == b.position;
                         }),
             list.end());
  if (list.size() > most) return false;
  c_.statistics.nodes += static_cast<int64_t>(list.size());
  part.stages.push_back(std::move(list));
  ++part.end;
  return true;
}

// All sums over the groups of Y or Z: `from` with items of groups next... False if they are more than `most`.
bool Levels::walk(Part& part, size_t next, uint32_t from, size_t most) {
  const int64_t allowed = c_.allowance();
  const Point at = part.sums[from];
  for (size_t g = next; g < part.end; ++g) {
    const auto& points = placed_[g].points;
    if (at.reduced + points[1].reduced > allowed) break;  // later groups have dearer items
    for (size_t i = 1; i < points.size() && at.reduced + points[i].reduced <= allowed; ++i) {
      const int64_t reduced = at.reduced + points[i].reduced;
      const int32_t level = at.level + points[i].level;
      if (reduced + rest(g + 1, level) > allowed) continue;
      if (part.sums.size() >= most || c_.watch.spent(8)) return false;
      part.sums.push_back({at.position + points[i].position, reduced, level, from, static_cast<uint32_t>(g),
                           static_cast<uint32_t>(i)});
      if (!walk(part, g + 1, static_cast<uint32_t>(part.sums.size() - 1), most)) return false;
    }
  }
  return true;
}

// Least significant digits first; the passes that a range of positions needs.
void sort_by_position(std::vector<Key>& keys, std::vector<Key>& scratch) {
  if (keys.size() < 256) {
    std::stable_sort(keys.begin(), keys.end(),
                     [](const Key& a, const Key& b) { return a.position < b.position; });
    return;
  }
  constexpr int kDigit = 11;
  const auto [low, high] = std::minmax_element(
      keys.begin(), keys.end(), [](const Key& a, const Key& b) { return a.position < b.position; });
  const int64_t base = low->position;
  const auto range = static_cast<uint64_t>(high->position - base);
  scratch.resize(keys.size());
  for (int shift = 0; shift < 64 && (range >> shift) != 0; shift += kDigit) {
    const auto digit = [&](const Key& key) {
      return (static_cast<uint64_t>(key.position - base) >> shift) & ((1u << kDigit) - 1);
    };
    std::array<uint32_t, (1u << kDigit) + 1> begins{};
    for (const Key& key : keys) ++begins[digit(key) + 1];
    for (size_t i = 1; i < begins.size(); ++i) begins[i] += begins[i - 1];
    for (const Key& key : keys) scratch[begins[digit(key)]++] = key;
    keys.swap(scratch);
  }
}

// Makes rows, positions and order. Sums that nothing completes are left out.
void Levels::sort(Part& part) {
  const auto& sums = part.stages.empty() ? part.sums : part.stages.back();
  const int64_t allowed = c_.allowance();
  // By level first; a list in order of position stays so.
  std::vector<size_t> begins(static_cast<size_t>(highest_ - lowest_ + 2));
  const auto alive = [&](const Point& p) { return p.reduced + rest(part.end, p.level) <= allowed; };
  for (const Point& p : sums) {
    if (alive(p)) ++begins[static_cast<size_t>(p.level - lowest_) + 1];
  }
  for (size_t l = 1; l < begins.size(); ++l) begins[l] += begins[l - 1];
  keys_.resize(begins.back());
  std::vector<size_t> ends(begins.begin(), begins.end() - 1);
  for (size_t i = 0; i < sums.size(); ++i) {
    if (!alive(sums[i])) continue;
    keys_[ends[static_cast<size_t>(sums[i].level - lowest_)]++] = {sums[i].position,
                                                                   static_cast<uint32_t>(i)};
  }
  part.rows.clear(), part.positions.clear(), part.order.clear();
  part.positions.reserve(keys_.size()), part.order.reserve(keys_.size());
  std::vector<Key> level, scratch;
  for (size_t l = 0; l + 1 < begins.size(); ++l) {
    if (begins[l] == begins[l + 1]) continue;
    level.assign(keys_.begin() + static_cast<ptrdiff_t>(begins[l]),
                 keys_.begin() + static_cast<ptrdiff_t>(begins[l + 1]));
    if (part.stages.empty()) sort_by_position(level, scratch);
    Part::Row row{lowest_ + static_cast<int64_t>(l), part.positions.size(), 0, kLargestSum};
    for (const Key& key : level) {
      // Of equal places any will do; their reduced costs differ by rounding only.
      if (part.positions.size() > row.begin && part.positions.back() == key.position) continue;
      part.positions.push_back(key.position);
      part.order.push_back(key.sum);
      row.least_reduced = std::min(row.least_reduced, sums[key.sum].reduced);
    }
    row.end = part.positions.size();
    part.rows.push_back(row);
  }
  c_.statistics.nodes += static_cast<int64_t>(sums.size());
  c_.statistics.largest_list = std::max(c_.statistics.largest_list, static_cast<int64_t>(sums.size()));
}

// X with at most `most` sums, Y and Z over the groups that are left. False if those were cut off, or stopped.
bool Levels::make_parts(size_t most) {
  std::stable_sort(placed_.begin() + static_cast<ptrdiff_t>(x_.end), placed_.end(),
                   [](const Placed& a, const Placed& b) { return a.group > b.group; });
  start_rest();
  complete_rest(x_.end);
  if (x_.stages.empty()) x_.stages.emplace_back(1);
  while (x_.end < placed_.size() && add_group(x_, most)) continue;
  if (c_.watch.stopped()) return false;
  // Every second group of the others.
  const size_t left = placed_.size() - x_.end;
  std::vector<Placed> others(std::make_move_iterator(placed_.begin() + static_cast<ptrdiff_t>(x_.end)),
                             std::make_move_iterator(placed_.end()));
  placed_.resize(x_.end);
  for (size_t parity : {0, 1}) {
    for (size_t i = parity; i < left; i += 2) placed_.push_back(std::move(others[i]));
  }
  sort(x_);
  fold(x_);
  size_t first = x_.end;
  bool complete = true;
  for (Part* part : {&y_, &z_}) {
    complete_rest(first);
    *part = {first, part == &y_ ? first + (left + 1) / 2 : placed_.size(), std::vector<Point>(1), {}, {}, {}, {}};
    complete = walk(*part, first, 0, 4 * most) && complete;
    if (c_.watch.stopped()) return false;
    sort(*part);
    fold(*part);
    first = part->end;
  }
  return complete;
}

// Calls visit(row of X, y, first z, last z + 1) for all pairs that some sum of that row might complete.
// False as soon as `visit` is.
template <class Visit>
bool Levels::for_pairs(const Target& target, Visit visit) {
  for (const Part::Row& y : y_.rows) {
    for (const Part::Row& z : z_.rows) {
      const int64_t level = target.level - y.level - z.level;
      const auto x = std::lower_bound(x_.rows.begin(), x_.rows.end(), level,
                                      [](const Part::Row& row, int64_t l) { return row.level < l; });
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
void Levels::mark(const Target& target) {
  const int64_t width = target.high - target.low;
  bits_.clear();
  int128 span = 0;
  for (const Part::Row& row : x_.rows) {
    bits_.push_back({x_.positions[row.begin], x_.positions[row.end - 1], 0});
    span += static_cast<int128>(bits_.back().last) - bits_.back().first + width + 1;
  }
  shift_ = 0;
  while ((span >> shift_) > kBitsPerSum * static_cast<int64_t>(x_.positions.size()) || (width >> shift_) > 4) {
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
bool Levels::search(Target marked) {
  bool again = true;
  while (again) {
    again = false;
    mark(marked);
    Target now = marked;
    const bool done = for_pairs(marked, [&](size_t row, size_t y, size_t begin, size_t end) {
      pairs_left_ -= static_cast<int64_t>(end - begin);
      if (pairs_left_ < 0 || c_.watch.spent(static_cast<int64_t>(2 * (end - begin)))) return false;
      const int64_t from = marked.high - y_.positions[y] - bits_[row].first;
      const uint64_t* table = table_.data() + bits_[row].word;
      const int64_t* z = z_.positions.data();
      for (size_t k = begin; k < end; ++k) {
        const auto bit = static_cast<uint64_t>(from - z[k]) >> shift_;
        if ((table[bit / 64] >> (bit % 64) & 1) == 0) continue;
        while (improve(now, row, y, k)) {
          // Narrower windows. Ranges and marks of the old one stay valid; far too wide, they are made anew.
          if (!aim(now) || c_.good_enough()) return false;
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
bool Levels::improve(const Target& target, size_t row, size_t y, size_t z) {
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

bool Levels::run() {
  if (!open_groups(c_, c_.allowance(), groups_) || groups_.open.empty()) return false;
  start_ = {groups_.base.time, groups_.base.memory};
  for (const Items& items : groups_.open) {
    const Sum& first = items.sums[cheapest_item(items)];
    start_.time += first.time, start_.memory += first.memory;
  }
  if (!choose_basis()) return false;
  if (c_.proven()) return true;
  if (!place_items() || !aim()) return false;
  if (targets_.empty()) return true;
  if (!limit_levels()) return false;
  for (const size_t most : kMostSums) {
    pairs_left_ = kPairsPerSum * static_cast<int64_t>(most);
    // With lists that were cut off, nothing is proven, but better plans are found.
    const bool complete = make_parts(most);
    if (c_.watch.stopped()) return false;
    if (!complete) pairs_left_ /= 16;
    if (search_targets() && complete) return true;
    if (c_.watch.stopped() || c_.good_enough()) return false;
  }
  return false;
}

bool Levels::search_targets() {
  const int64_t pairs = pairs_left_;
  bool done = true;
  const std::vector<Target> targets = targets_;
  for (Target target : targets) {
    done = done && aim(target) && (target.low > target.high || search(target));
  }
  c_.statistics.nodes += pairs - pairs_left_;
  c_.statistics.lines += static_cast<int64_t>(targets.size());
  return done;
}

}  // namespace

bool search_levels(Context& context) { return Levels(context).run(); }

}  // namespace osdp::search
