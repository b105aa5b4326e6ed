#include "search/groups.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace osdp::search {
namespace {

struct HashOptions {
  size_t operator()(const std::vector<Option>* options) const {
    uint64_t h = options->size();
    for (const auto& o : *options) {
      h = (h ^ static_cast<uint64_t>(o.time_ps)) * 0x9E3779B97F4A7C15ull;
      h = ((h ^ (h >> 29)) + static_cast<uint64_t>(o.memory_bytes)) * 0xBF58476D1CE4E5B9ull;
    }
    return h ^ (h >> 32);
  }
};
struct SameOptions {
  bool operator()(const std::vector<Option>* a, const std::vector<Option>* b) const { return *a == *b; }
};

bool before(const std::vector<Option>& a, const std::vector<Option>& b) {
  return std::lexicographical_compare(
      a.begin(), a.end(), b.begin(), b.end(), [](const Option& x, const Option& y) {
        return x.memory_bytes != y.memory_bytes ? x.memory_bytes < y.memory_bytes : x.time_ps < y.time_ps;
      });
}

}  // namespace

std::vector<int> undominated(const std::vector<Option>& options) {
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

std::vector<Group> make_groups(const Problem& problem) {
  std::unordered_map<const std::vector<Option>*, size_t, HashOptions, SameOptions> kind_of;
  std::vector<Group> raw;  // one per distinct option list
  for (size_t i = 0; i < problem.operators.size(); ++i) {
    const auto [it, fresh] = kind_of.try_emplace(&problem.operators[i], raw.size());
    if (fresh) {
      Group& g = raw.emplace_back();
      g.kinds.resize(1);
      g.kinds[0].original = undominated(problem.operators[i]);
      for (int k : g.kinds[0].original) g.options.push_back(problem.operators[i][k]);
    }
    raw[it->second].count++;
    raw[it->second].kinds[0].members.push_back(static_cast<int>(i));
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

std::vector<int> spread_choices(const Problem& problem, const std::vector<Group>& groups,
                                const std::vector<std::vector<int64_t>>& counts) {
  std::vector<int> choices(problem.operators.size(), -1);
  std::vector<std::pair<int, const Group::Kind*>> members;
  for (size_t g = 0; g < groups.size(); ++g) {
    members.clear();
    for (const auto& kind : groups[g].kinds) {
      for (int m : kind.members) members.emplace_back(m, &kind);
    }
    std::sort(members.begin(), members.end());
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
