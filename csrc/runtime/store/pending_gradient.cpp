#include "runtime/store/pending_gradient.hpp"

#include "runtime/store/precision.hpp"

namespace osdp::runtime {

void PendingGradient::add(at::Tensor gradient, at::ScalarType own) {
  if (kept()) gradient = wide_sum(std::move(gradient), std::exchange(kept_, at::Tensor()), own);
  pending_ = pending() ? wide_sum(pending_, gradient, own) : std::move(gradient);
}

}  // namespace osdp::runtime
