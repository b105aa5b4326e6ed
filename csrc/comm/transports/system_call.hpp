// Error checking for system calls that return a negative number and set errno.
#pragma once

#include <cerrno>
#include <system_error>

namespace osdp::comm {

// Throws std::system_error if `result` is negative; the error says that `what` failed and why.
inline int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

}  // namespace osdp::comm
