// Leaves inference mode for a scope: tensors made in it would lose their version counters for good, and
// parameters shown such data could no longer be trained. Grad mode stays off, as inference mode has it.
#pragma once

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <optional>

namespace osdp::runtime {

class NoInference {
 public:
  NoInference() {
    if (!c10::InferenceMode::is_enabled()) return;
    guard_.emplace(false);
    c10::GradMode::set_enabled(false);
  }

 private:
  std::optional<c10::InferenceMode> guard_;
};

}  // namespace osdp::runtime
