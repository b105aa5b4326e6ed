// Leaves inference mode for a scope: tensors created in inference mode never get version counters, and a
// parameter that showed such data could no longer be trained. Grad mode stays off, as in inference mode. Also
// leaves the transforms of torch.func (vmap, grad): tensors created in them are wrappers without storage.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace osdp::runtime {

class NoInference {
 public:
  NoInference() {
    if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode))
      no_transform_.emplace(c10::DispatchKeySet({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                                 c10::DispatchKey::FuncTorchDynamicLayerBackMode,
                                                 c10::DispatchKey::FuncTorchVmapMode}));
    if (!c10::InferenceMode::is_enabled()) return;
    guard_.emplace(false);
    c10::GradMode::set_enabled(false);
  }

 private:
  std::optional<c10::InferenceMode> guard_;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> no_transform_;
};

}  // namespace osdp::runtime
