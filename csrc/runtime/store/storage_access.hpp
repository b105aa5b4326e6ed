// Storages that throw when their data is asked for, and the way back.
#pragma once

#include <c10/core/StorageImpl.h>
#include <torch/headeronly/version.h>

#include <string>
#include <utility>

namespace osdp::runtime {

// Note [Readable again]
// torch lets a storage refuse every access of its data, with an error of one's own, since 2.1; only newer
// versions have a function that takes this back. In older ones the flag is private, and what an explicit
// instantiation names may be private.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
template <bool c10::StorageImpl::* flag>
struct Refusing {
  friend void refuse(c10::StorageImpl& storage, bool yes) { storage.*flag = yes; }
};
template struct Refusing<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
void refuse(c10::StorageImpl& storage, bool yes);
#endif

// Its data is gone: every access throws `error`.
inline void set_unreadable(c10::StorageImpl& storage, const std::string& error) {
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, storage._mutable_data_ptr_no_checks().device()));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(error);
}

// Its data is `memory`, and can be read.
template <class Storage>
void set_readable(Storage& storage, at::DataPtr memory) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.clear_data_ptr_access_error_msg_();
  } else {
    refuse(storage, false);
  }
  storage.set_data_ptr_noswap(std::move(memory));  // which looks at the flags again
}

}  // namespace osdp::runtime
