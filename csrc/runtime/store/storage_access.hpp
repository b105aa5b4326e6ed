// Makes a storage throw when its data is accessed, and makes it readable again.
#pragma once

#include <c10/core/StorageImpl.h>
#include <torch/headeronly/version.h>

#include <string>
#include <utility>

namespace osdp::runtime {

// Note [Readable again]
// Since 2.1 torch lets a storage refuse every access to its data with a custom error; only newer versions
// have a function that undoes this. In older ones the flag is a private member, which an explicit template
// instantiation is allowed to name.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
template <bool c10::StorageImpl::* flag>
struct Refusing {
  friend void refuse(c10::StorageImpl& storage, bool yes) { storage.*flag = yes; }
};
template struct Refusing<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
void refuse(c10::StorageImpl& storage, bool yes);
#endif

// Releases its data: every access then throws `error`.
inline void set_unreadable(c10::StorageImpl& storage, const std::string& error) {
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, storage._mutable_data_ptr_no_checks().device()));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(error);
}

// Makes `memory` its data and allows access again.
template <class Storage>
void set_readable(Storage& storage, at::DataPtr memory) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.clear_data_ptr_access_error_msg_();
  } else {
    refuse(storage, false);
  }
  storage.set_data_ptr_noswap(std::move(memory));  // also updates the cached access flags
}

}  // namespace osdp::runtime
