// Whether a tensor's values are in memory: those of a fake tensor (FakeTensorMode), a meta tensor, a
// functional one or a wrapper subclass are not, and what asks it for a pointer reads address 0.
#pragma once

#include <ATen/core/Tensor.h>

namespace osdp::comm {

// A fake tensor names the device that it stands for; its storage is on the meta device.
inline bool is_fake(const at::TensorBase& t) {
  return t.has_storage() && t.storage().device_type() == c10::kMeta && !t.is_meta();
}

// For a tensor that is not sparse.
inline bool in_memory(const at::TensorBase& t) {
  if (!t.has_storage() || t.storage().device_type() == c10::kMeta) return false;
  return t.numel() == 0 || t.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
}

}  // namespace osdp::comm
