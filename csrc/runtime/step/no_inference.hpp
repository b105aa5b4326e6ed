// Leaves inference mode for a scope: tensors created in inference mode never get version counters, and a
// parameter that showed such data could no longer be trained. Grad mode stays off, as in inference mode. Also
// leaves the transforms of torch.func (vmap, grad), since tensors created in them are wrappers without
// storage, and the user's dispatch modes (CommDebugMode, FlopCounterMode), which would call again, from
// Python, what the runtime does with a parameter: for Python it is a DTensor (Note [Parameters that are
// DTensors] in osdp/sharding/dtensor_parameters.py). Under a FakeTensorMode they stay: what is made then is
// fake, too.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/utils/torch_dispatch_mode.h>

#include <optional>

namespace osdp::runtime {

class NoInference {
 public:
  NoInference() {
    if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode))
      no_transform_.emplace(c10::DispatchKeySet({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                                 c10::DispatchKey::FuncTorchDynamicLayerBackMode,
                                                 c10::DispatchKey::FuncTorchVmapMode}));
    using Modes = c10::impl::TorchDispatchModeTLS;
    if (Modes::any_modes_set(/*skip_infra_modes=*/true) &&
        !Modes::get_mode(c10::impl::TorchDispatchModeKey::FAKE))
      no_modes_.emplace();
    if (!c10::InferenceMode::is_enabled()) return;
    guard_.emplace(false);
    c10::GradMode::set_enabled(false);
  }

 private:
  std::optional<c10::InferenceMode> guard_;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> no_transform_;
  std::optional<torch::torch_dispatch_mode::StashTorchDispatchStackGuard> no_modes_;
};

}  // namespace osdp::runtime
