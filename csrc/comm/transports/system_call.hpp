// System calls that tell of their failure by a negative number and errno.
#pragma once

#include <cerrno>
#include <system_error>

namespace osdp::runtime {

// Throws std::system_error, which says `what` failed and why.
inline int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

}  // namespace osdp::runtime
