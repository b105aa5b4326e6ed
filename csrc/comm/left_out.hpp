// For tests of the ordering rules in docs/accelerators.md: records the calls that order streams and can leave
// one of them out. Only in a build with OSDP_SENSITIVITY, which `make test-sensitivity` makes for itself: no
// other has a switch.
//
// Note [What orders streams]
// Each call that makes a stream wait for another, keeps memory until one has waited, or moves an
// AccumulateGrad node to another stream, checks here whether it is left out. If any of them is left out, a
// device that checks the order of accesses must report a race; a call whose omission is not reported is not
// needed (tests/accelerator/test_sensitivity.py).
#pragma once

#ifdef OSDP_SENSITIVITY
#include <atomic>
#include <source_location>
#include <string>
#include <vector>
#endif

namespace osdp::comm {

#ifdef OSDP_SENSITIVITY

// The place of a call: of `CallSite where = CallSite::current()`, a parameter.
using CallSite = std::source_location;

// From now on records which of these calls are made, and leaves out `site` (a name from ordering_sites;
// empty: none).
void leave_out(const std::string& site);
// The calls made since leave_out, sorted: "WHAT FILE:LINE in FUNCTION".
std::vector<std::string> ordering_sites();

namespace detail {
extern std::atomic<bool> noting;
bool is_left_out(const char* what, const CallSite& where);
}  // namespace detail

// `what`: the kind of call, such as "wait".
inline bool left_out(const char* what, CallSite where = CallSite::current()) {
  return detail::noting.load(std::memory_order_relaxed) && detail::is_left_out(what, where);
}

#else

struct CallSite {
  static constexpr CallSite current() { return {}; }
};

constexpr bool left_out(const char*, CallSite = {}) { return false; }

#endif

}  // namespace osdp::comm
