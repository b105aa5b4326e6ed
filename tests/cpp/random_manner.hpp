// How plans of a random model are carried out: each operator is gathered at its own call.
#pragma once

#include "search/simulate/play_plan.hpp"

namespace osdp::search {

inline Manner manner(const Model& model) {
  Manner m;
  m.small_unit_bytes = 64;
  m.stolen_permille = 200;
  for (int i = 0; i < static_cast<int>(model.operators.size()); ++i) {
    const Operator& op = model.operators[i];
    Place& p = m.places.emplace_back();
    p.parameters = !op.tensors.empty();
    for (const Tensor& t : op.tensors) p.bytes += t.bytes();
    p.gathered_bytes = p.bytes;
    p.block = op.block;
    p.gathered_at = i;
    p.calls = {{i, i}};
  }
  return m;
}

}  // namespace osdp::search
