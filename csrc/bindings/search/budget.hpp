// Ctrl-C while csrc/search runs without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>

namespace osdp {

// Asks Python whether a signal's handler raised; takes the GIL for the question only.
inline std::function<bool()> ask_signals() {
  return [] {
    pybind11::gil_scoped_acquire gil;
    return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0;
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
