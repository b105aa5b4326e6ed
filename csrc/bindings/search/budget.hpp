// Ctrl-C, and what is told of the progress, while csrc/search runs without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <functional>
#include <memory>

namespace osdp {

// Asks Python whether a signal's handler raised; takes the GIL for the question only.
inline std::function<bool()> ask_signals() {
  return [] {
    pybind11::gil_scoped_acquire gil;
    return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0;
  };
}

// Calls `progress(gap)` at most every 0.2 s. `progress` must outlive the result and its copies, which are
// made without the GIL and so must not count references. An exception that it raises ends the search as one
// of a signal handler does: ask_signals() sees it.
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

// After a search: where Ctrl-C ended it, the best so far is the answer, if there is one. Other exceptions of
// signal handlers go on.
inline void end_of_search(bool found) {
  if (PyErr_Occurred() == nullptr) return;
  if (!found || PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) == 0) throw pybind11::error_already_set();
  PyErr_Clear();
}

}  // namespace osdp
