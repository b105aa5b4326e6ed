#include "search/pipeline/part.hpp"

#include <algorithm>

#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

void check_positions(const std::vector<int>& chosen, size_t operators) {
  for (size_t n = 0; n < chosen.size(); ++n) {
    if (chosen[n] < 0 || static_cast<size_t>(chosen[n]) >= operators || (n > 0 && chosen[n] <= chosen[n - 1]))
      throw InvalidProblem("a part of a model has no operator " + std::to_string(chosen[n]) +
                           ", or has it twice");
  }
}

}  // namespace

Model part_of(const Model& model, const std::vector<int>& chosen, int64_t input_bytes_per_sample,
              int64_t buffer_bytes) {
  check_positions(chosen, model.operators.size());
  Model part;
  part.input_bytes_per_sample = input_bytes_per_sample, part.buffer_bytes = buffer_bytes;
  std::vector<int> block(model.blocks.size(), -1);
  for (const int i : chosen)
    if (const int b = model.operators[i].block; b >= 0) block.at(b) = 0;
  for (size_t b = 0; b < block.size(); ++b) {
    if (block[b] < 0) continue;
    block[b] = static_cast<int>(part.blocks.size());
    part.blocks.push_back(model.blocks[b]);
  }
  for (const int i : chosen) {
    part.operators.push_back(model.operators[i]);
    if (int& b = part.operators.back().block; b >= 0) b = block[b];
  }
  return part;
}

Manner part_of(const Manner& manner, const std::vector<int>& chosen) {
  check_positions(chosen, manner.places.size());
  Manner part = manner;
  part.places.clear();
  for (const int i : chosen) {
    Place& place = part.places.emplace_back(manner.places[i]);
    std::vector<Span> calls;
    for (const Span& s : place.calls) {
      const auto first = std::lower_bound(chosen.begin(), chosen.end(), s.first) - chosen.begin();
      const auto end = std::upper_bound(chosen.begin(), chosen.end(), s.last) - chosen.begin();
      if (first < end) calls.push_back({static_cast<int>(first), static_cast<int>(end) - 1});
    }
    place.calls = std::move(calls);
  }
  return part;
}

}  // namespace osdp::search
