// Handles Ctrl-C and reports progress while csrc/search runs without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <functional>
#include <memory>

namespace osdp {

// Returns a function that calls `progress(gap)` at most every 0.2 s. `progress` must outlive the function and
// its copies: they are copied without the GIL and so must not change reference counts. An exception raised by
// `progress` ends the search like one from a signal handler: Signals detects it.
inline std::function<void(double)> telling(const pybind11::object& progress) {
  using Clock = std::chrono::steady_clock;
  return [ask = &progress, told = std::make_shared<Clock::time_point>(Clock::now())](double gap) {
    const auto now = Clock::now();
    if (now - *told < std::chrono::milliseconds(200)) return;
    *told = now;
    pybind11::gil_scoped_acquire gil;
    if (PyErr_Occurred() != nullptr) return;
    try {
      (*ask)(gap);
    } catch (pybind11::error_already_set& error) {
      error.restore();
    }
  };
}

// Ends a search for what signal handlers do, and for exceptions of `progress`. Made and ended with the GIL.
//
// A handler that raises is seen by whoever runs it. One of SIGINT that returns is not, so during a search it
// is wrapped in one that notes the call.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // Returns a check whether the search should end; it takes the GIL only for the check.
  std::function<bool()> ask() const;
  // After the search. If Ctrl-C ended it and a solution was found, the best so far is the answer; otherwise
  // raises what is pending, or KeyboardInterrupt.
  void end(bool found);

 private:
  void unwrap();

  pybind11::object handler_, noting_;  // SIGINT's; noting_: null if it is not wrapped
  const std::shared_ptr<bool> noted_ = std::make_shared<bool>(false);
};

}  // namespace osdp
