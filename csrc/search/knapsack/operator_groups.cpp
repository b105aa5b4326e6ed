#include "search/knapsack/operator_groups.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

namespace osdp::search {
namespace {

// Four independent accumulators, so that multiplications overlap: hashing a table of 100,000 operators is
// limited by memory bandwidth.
uint64_t hash(std::span<const Option> options) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15ull;
  uint64_t a = options.size(), b = 1, c = 2, d = 3;
  size_t i = 0;
  for (; i + 2 <= options.size(); i += 2) {
    a = (a ^ static_cast<uint64_t>(options[i].time_ps)) * kOdd;
    b = (b ^ static_cast<uint64_t>(options[i].memory_bytes)) * kOdd;
    c = (c ^ static_cast<uint64_t>(options[i + 1].time_ps)) * kOdd;
    d = (d ^ static_cast<uint64_t>(options[i + 1].memory_bytes)) * kOdd;
    a ^= a >> 32, b ^= b >> 32, c ^= c >> 32, d ^= d >> 32;
  }
  if (i < options.size()) {
    a = (a ^ static_cast<uint64_t>(options[i].time_ps)) * kOdd;
    b = (b ^ static_cast<uint64_t>(options[i].memory_bytes)) * kOdd;
  }
  a = ((a ^ (a >> 29)) * kOdd) + ((b ^ (b >> 31)) * kOdd);
  a = (a ^ (a >> 32)) + ((c ^ (c >> 30)) * kOdd) + ((d ^ (d >> 33)) * kOdd);
  return (a ^ (a >> 29)) * kOdd;
}

bool same(std::span<const Option> a, std::span<const Option> b) {
  return a.size() == b.size() &&
         (a.data() == b.data() || a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// Operators by equal option lists: kinds in order of first appearance.
struct Kinds {
  std::vector<uint32_t> of;      // [operator]: its kind
  std::vector<size_t> first;     // [kind]: its first operator
  std::vector<int64_t> members;  // [kind]: number of operators
};

Kinds find_kinds(const ProblemView& problem) {
  Kinds kinds;
  kinds.of.resize(problem.operators.size());
  struct Slot {
    uint32_t kind_plus_1 = 0, tag = 0;
  };
  std::vector<Slot> slots(std::bit_ceil(2 * problem.operators.size() + 2));
  for (size_t i = 0; i < problem.operators.size(); ++i) {
    const auto options = problem.operators[i];
    const uint64_t h = hash(options);
    const auto tag = static_cast<uint32_t>(h);
    for (size_t at = h >> 32;; ++at) {
      Slot& slot = slots[at & (slots.size() - 1)];
      if (slot.kind_plus_1 == 0) {
        slot = {static_cast<uint32_t>(kinds.first.size() + 1), tag};
        kinds.of[i] = static_cast<uint32_t>(kinds.first.size());
        kinds.first.push_back(i);
        kinds.members.push_back(1);
        break;
      }
      const uint32_t kind = slot.kind_plus_1 - 1;
      if (slot.tag == tag && same(options, problem.operators[kinds.first[kind]])) {
        kinds.of[i] = kind;
        ++kinds.members[kind];
        break;
      }
    }
  }
  return kinds;
}

// The checks of validate() without the limit, done once per kind.
bool valid(const ProblemView& problem, const Kinds& kinds) {
  int128 time = 0, memory = 0;
  for (size_t k = 0; k < kinds.first.size(); ++k) {
    const auto options = problem.operators[kinds.first[k]];
    int64_t slowest = -1, largest = -1;
    for (const auto& [t, m] : options) {
      if (t < 0 || m < 0) return false;
      slowest = std::max(slowest, t), largest = std::max(largest, m);
    }
    if (slowest < 0 || options.size() > kMostOptions) return false;
    time += static_cast<int128>(slowest) * kinds.members[k];
    memory += static_cast<int128>(largest) * kinds.members[k];
  }
  return !kinds.first.empty() && time <= kLargestSum && memory <= kLargestSum;
}

bool before(const std::vector<Option>& a, const std::vector<Option>& b) {
  return std::lexicographical_compare(
      a.begin(), a.end(), b.begin(), b.end(), [](const Option& x, const Option& y) {
        return x.memory_bytes != y.memory_bytes ? x.memory_bytes < y.memory_bytes : x.time_ps < y.time_ps;
      });
}

}  // namespace

std::vector<int> undominated(std::span<const Option> options) {
  std::vector<int> order(options.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const Option &x = options[a], &y = options[b];
    if (x.memory_bytes != y.memory_bytes) return x.memory_bytes < y.memory_bytes;
    return x.time_ps != y.time_ps ? x.time_ps < y.time_ps : a < b;
  });
  std::vector<int> kept;
  for (int i : order) {
    if (kept.empty() || options[i].time_ps < options[kept.back()].time_ps) kept.push_back(i);
  }
  return kept;
}

std::vector<Group> make_groups(const ProblemView& problem) {
  const Kinds kinds = find_kinds(problem);
  if (!valid(problem, kinds)) validate(problem);  // throws with the reason
  std::vector<Group> raw(kinds.first.size());     // one per kind
  for (size_t k = 0; k < raw.size(); ++k) {
    const auto options = problem.operators[kinds.first[k]];
    raw[k].count = kinds.members[k];
    raw[k].kinds.resize(1);
    raw[k].kinds[0].original = undominated(options);
    raw[k].kinds[0].members.reserve(static_cast<size_t>(kinds.members[k]));
    for (int o : raw[k].kinds[0].original) raw[k].options.push_back(options[o]);
  }
  for (size_t i = 0; i < kinds.of.size(); ++i) {
    raw[kinds.of[i]].kinds[0].members.push_back(static_cast<int>(i));
  }
  std::stable_sort(raw.begin(), raw.end(),
                   [](const Group& a, const Group& b) { return before(a.options, b.options); });
  std::vector<Group> groups;
  for (Group& g : raw) {
    if (!groups.empty() && groups.back().options == g.options) {
      groups.back().count += g.count;
      groups.back().kinds.push_back(std::move(g.kinds[0]));
    } else {
      groups.push_back(std::move(g));
    }
  }
  return groups;
}

std::vector<int> spread_choices(size_t operators, const std::vector<Group>& groups,
                                const std::vector<std::vector<int64_t>>& counts) {
  std::vector<int> choices(operators, -1);
  std::vector<std::pair<int, const Group::Kind*>> members;
  for (size_t g = 0; g < groups.size(); ++g) {
    members.clear();
    for (const auto& kind : groups[g].kinds) {
      for (int m : kind.members) members.emplace_back(m, &kind);
    }
    if (groups[g].kinds.size() > 1) std::sort(members.begin(), members.end());
    size_t next = 0;
    for (size_t k = 0; k < counts[g].size(); ++k) {
      for (int64_t n = 0; n < counts[g][k]; ++n, ++next) {
        choices[members.at(next).first] = members[next].second->original[k];
      }
    }
    if (next != members.size()) throw std::logic_error("spread_choices: counts do not cover the group");
  }
  return choices;
}

}  // namespace osdp::search
