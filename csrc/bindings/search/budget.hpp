// Handles Ctrl-C and reports progress while csrc/search runs without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <functional>
#include <memory>

namespace osdp {

// Returns a check whether a Python signal handler has raised; it takes the GIL only for the check.
inline std::function<bool()> ask_signals() {
  return [] {
    pybind11::gil_scoped_acquire gil;
    return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0;
  };
}

// Returns a function that calls `progress(gap)` at most every 0.2 s. `progress` must outlive the function and
// its copies: they are copied without the GIL and so must not change reference counts. An exception raised by
// `progress` ends the search like one from a signal handler: ask_signals() detects it.
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

// Called after a search. If Ctrl-C ended it and a solution was found, the best so far is the answer; all
// other pending exceptions are raised.
inline void end_of_search(bool found) {
  if (PyErr_Occurred() == nullptr) return;
  if (!found || PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) == 0) throw pybind11::error_already_set();
  PyErr_Clear();
}

}  // namespace osdp
