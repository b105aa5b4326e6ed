// A plan that csrc/search found, as Python takes it.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "search/branch/runners_up.hpp"

inline std::vector<int> codes(const std::vector<osdp::search::Recompute>& ways) {
  std::vector<int> out;
  for (osdp::search::Recompute r : ways) out.push_back(static_cast<int>(r));
  return out;
}

inline pybind11::dict found_dict(const osdp::search::Found& f) {
  using namespace pybind11::literals;
  return pybind11::dict("batch_size"_a = f.batch.size, "accumulation"_a = f.batch.accumulation,
                        "transient_bytes"_a = f.transient_bytes, "blocks"_a = codes(f.decision.ways),
                        "choices"_a = f.decision.choices, "step_ps"_a = f.step_ps,
                        "peak_bytes"_a = f.peak_bytes);
}
