// For tests of the ordering rules in docs/accelerators.md: which calls order streams, and one of them left
// out.
//
// Note [What orders streams]
// Each call that makes a stream wait for another, holds memory until one has waited, or moves a gradient's
// node to another stream, asks here whether it is left out. With any of them left out, a device that checks
// the order of accesses must report a race; a call that nothing notices is not needed
// (tests/accelerator/test_sensitivity.py). Outside of tests asking is one load.
#pragma once

#include <atomic>
#include <source_location>
#include <string>
#include <vector>

namespace osdp::runtime {

// From now on notes which of these calls are made, and leaves out `site`, as ordering_sites names it; empty:
// none.
void leave_out(const std::string& site);
// Those made since leave_out, sorted: "WHAT FILE:LINE in FUNCTION".
std::vector<std::string> ordering_sites();

namespace detail {
extern std::atomic<bool> noting;
bool is_left_out(const char* what, const std::source_location& where);
}  // namespace detail

// `what`: the kind of call, as "wait".
inline bool left_out(const char* what, std::source_location where = std::source_location::current()) {
  return detail::noting.load(std::memory_order_relaxed) && detail::is_left_out(what, where);
}

}  // namespace osdp::runtime
