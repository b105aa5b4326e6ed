// Bindings of the checkers of whole plans (csrc/search/certificate/plan_certificate.hpp).
#include "bindings/names.hpp"
#include "search/certificate/plan_certificate.hpp"

namespace py = pybind11;
using namespace py::literals;
using namespace osdp::search;

namespace {

// Batch sizes from .. to, accumulation, and prices: phase and numerator.
using CheckedPart = std::tuple<int64_t, int64_t, int64_t, std::vector<std::pair<int, int64_t>>>;

std::vector<BatchProof> batch_proofs(const std::vector<CheckedPart>& parts) {
  std::vector<BatchProof> out;
  for (const auto& [least, most, accumulation, prices] : parts) {
    BatchProof& p = out.emplace_back(BatchProof{{least, accumulation}, {most, accumulation}, {}});
    for (const auto& [phase, numerator] : prices) p.prices.push_back({phase, numerator});
  }
  return out;
}

}  // namespace

void bind_certificate(py::module_& m) {
  m.def("check_plan", &check_plan, "model"_a, "request"_a, "plan"_a, "step_ps"_a, "peak_bytes"_a,
        "Empty if it holds, else what is false.");
  m.def(
      "proven_bound_ps",
      [](const Model& model, const Request& request, int64_t samples, const std::vector<CheckedPart>& parts,
         int64_t denominator) {
        return proven_bound_ps(model, request, samples, batch_proofs(parts), denominator);
      },
      "model"_a, "request"_a, "samples"_a, "parts"_a, "denominator"_a,
      "What these prices of memory prove of a step of any plan that fits. Parts: batch sizes from and to, "
      "accumulation, prices as phase and numerator.");
}
