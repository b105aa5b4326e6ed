#include "search/level_parts.hpp"

#include <array>

namespace osdp::search::levels {
namespace {

bool by_place(const Point& a, const Point& b) {
  return a.level != b.level ? a.level < b.level : a.position < b.position;
}

}  // namespace

// One group more for X. False, and X as it was, if it would have more than `most` sums.
bool Parts::add_group(Part& part, size_t most) {
  const auto& points = placed[part.end].points;
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
      if (reduced + rest_.at(part.end + 1, level) > allowed) continue;
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
  list.shrink_to_fit();
  held_ += list.size();
  part.stages.push_back(std::move(list));
  ++part.end;
  return !c_.watch.too_large((held_ + 2 * most) * sizeof(Point));
}

// All sums over the groups of Y or Z: `from` with items of groups next... False if they are more than `most`.
bool Parts::walk(Part& part, size_t next, uint32_t from, size_t most) {
  const int64_t allowed = c_.allowance();
  const Point at = part.sums[from];
  for (size_t g = next; g < part.end; ++g) {
    const auto& points = placed[g].points;
    if (at.reduced + points[1].reduced > allowed) break;  // later groups have dearer items
    for (size_t i = 1; i < points.size() && at.reduced + points[i].reduced <= allowed; ++i) {
      const int64_t reduced = at.reduced + points[i].reduced;
      const int32_t level = at.level + points[i].level;
      if (reduced + rest_.at(g + 1, level) > allowed) continue;
      if (part.sums.size() >= most || c_.watch.spent(8)) return false;
      part.sums.push_back({at.position + points[i].position, reduced, level, from, static_cast<uint32_t>(g),
                           static_cast<uint32_t>(i)});
      if (!walk(part, g + 1, static_cast<uint32_t>(part.sums.size() - 1), most)) return false;
    }
  }
  return true;
}

// Least significant digits first; the passes that a range of positions needs.
void Parts::sort_by_position(std::vector<Key>& keys, std::vector<Key>& scratch) {
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
void Parts::sort(Part& part) {
  const int64_t lowest = rest_.lowest();
  const auto& sums = part.stages.empty() ? part.sums : part.stages.back();
  const int64_t allowed = c_.allowance();
  // By level first; a list in order of position stays so.
  std::vector<size_t> begins(static_cast<size_t>(rest_.highest() - lowest + 2));
  const auto alive = [&](const Point& p) { return p.reduced + rest_.at(part.end, p.level) <= allowed; };
  for (const Point& p : sums) {
    if (alive(p)) ++begins[static_cast<size_t>(p.level - lowest) + 1];
  }
  for (size_t l = 1; l < begins.size(); ++l) begins[l] += begins[l - 1];
  keys_.resize(begins.back());
  std::vector<size_t> ends(begins.begin(), begins.end() - 1);
  for (size_t i = 0; i < sums.size(); ++i) {
    if (!alive(sums[i])) continue;
    keys_[ends[static_cast<size_t>(sums[i].level - lowest)]++] = {sums[i].position, static_cast<uint32_t>(i)};
  }
  part.rows.clear(), part.positions.clear(), part.order.clear();
  part.positions.reserve(keys_.size()), part.order.reserve(keys_.size());
  std::vector<Key> level, scratch;
  for (size_t l = 0; l + 1 < begins.size(); ++l) {
    if (begins[l] == begins[l + 1]) continue;
    level.assign(keys_.begin() + static_cast<ptrdiff_t>(begins[l]),
                 keys_.begin() + static_cast<ptrdiff_t>(begins[l + 1]));
    if (part.stages.empty()) sort_by_position(level, scratch);
    Row row{lowest + static_cast<int64_t>(l), part.positions.size(), 0, kLargestSum};
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

bool Parts::make(size_t most, const std::vector<Target>& targets) {
  std::stable_sort(placed.begin() + static_cast<ptrdiff_t>(x.end), placed.end(),
                   [](const Placed& a, const Placed& b) { return a.group > b.group; });
  rest_.start(placed.size(), targets);
  rest_.complete(placed, x.end, c_.watch);
  if (x.stages.empty()) x.stages.emplace_back(1);
  while (x.end < placed.size() && add_group(x, most)) continue;
  if (c_.watch.stopped()) return false;
  // Every second group of the others.
  const size_t left = placed.size() - x.end;
  std::vector<Placed> others(std::make_move_iterator(placed.begin() + static_cast<ptrdiff_t>(x.end)),
                             std::make_move_iterator(placed.end()));
  placed.resize(x.end);
  for (size_t parity : {0, 1}) {
    for (size_t i = parity; i < left; i += 2) placed.push_back(std::move(others[i]));
  }
  sort(x);
  rest_.fold(x.rows);
  size_t first = x.end;
  bool complete = true;
  for (Part* part : {&y, &z}) {
    rest_.complete(placed, first, c_.watch);
    part->first = first, part->end = part == &y ? first + (left + 1) / 2 : placed.size();
    part->sums.clear();
    part->sums.reserve(4 * most);  // memory that is not touched costs nothing; to move does
    part->sums.emplace_back();
    complete = walk(*part, first, 0, 4 * most) && complete;
    if (c_.watch.stopped() ||
        c_.watch.too_large((held_ + 2 * (y.sums.size() + z.sums.size())) * sizeof(Point)))
      return false;  // twice: what sort() makes of them
    sort(*part);
    rest_.fold(part->rows);
    first = part->end;
  }
  return complete;
}

}  // namespace osdp::search::levels
