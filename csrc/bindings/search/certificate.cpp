// Bindings of the checkers of whole plans (csrc/search/certificate/plan_certificate.hpp).
#include "bindings/names.hpp"
#include "search/certificate/plan_certificate.hpp"

namespace py = pybind11;
using namespace py::literals;
using namespace osdp::search;

namespace {

using Prices = std::vector<std::pair<int, int64_t>>;

std::vector<PhasePrice> phase_prices(const Prices& prices) {
  std::vector<PhasePrice> out;
  for (const auto& [phase, numerator] : prices) out.push_back({phase, numerator});
  return out;
}

}  // namespace

void bind_certificate(py::module_& m) {
  m.def(
      "check_plan",
      [](const Model& model, const Request& request, const PlainPlan& plan, int64_t time_ps,
         int64_t memory_bytes, int64_t lower_bound_ps, const Prices& prices, int64_t denominator) {
        return check_plan(model, request, plan,
                          {time_ps, memory_bytes, lower_bound_ps, phase_prices(prices), denominator});
      },
      "model"_a, "request"_a, "plan"_a, "time_ps"_a, "memory_bytes"_a, "lower_bound_ps"_a, "prices"_a,
      "denominator"_a, "Empty if it holds, else what is false.");
  m.def(
      "plan_lower_bounds",
      [](const Model& model, const Request& request, const PlainPlan& plan,
         const std::vector<Prices>& alternatives, int64_t denominator) {
        std::vector<std::vector<PhasePrice>> lists;
        for (const Prices& prices : alternatives) lists.push_back(phase_prices(prices));
        return plan_lower_bounds(model, request, plan, lists, denominator);
      },
      "model"_a, "request"_a, "plan"_a, "alternatives"_a, "denominator"_a,
      "What each of these lists of prices of memory proves of any plan of this batch and no larger "
      "transients.");
}
