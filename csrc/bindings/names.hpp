// Enumerations are passed to and from Python as their names, which files use too (csrc/modes.hpp).
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "modes.hpp"

namespace osdp {

// The names of an enumeration, and `what`: how messages call it.
template <typename Code>
struct Names;

template <>
struct Names<Mode> {
  static constexpr const char* what = "mode";
  static constexpr size_t count = kModes.size();
  static const char* at(size_t code) { return kModes.at(code).name; }
};

template <>
struct Names<Split> {
  static constexpr const char* what = "split";
  static constexpr size_t count = kSplits.size();
  static const char* at(size_t code) { return kSplits.at(code); }
};

template <>
struct Names<Recompute> {
  static constexpr const char* what = "recompute";
  static constexpr size_t count = kRecomputes.size();
  static const char* at(size_t code) { return kRecomputes.at(code); }
};

template <typename Code>
pybind11::tuple names_of() {
  pybind11::tuple names(Names<Code>::count);
  for (size_t i = 0; i < Names<Code>::count; ++i) names[i] = Names<Code>::at(i);
  return names;
}

// Raises ValueError for an unknown name.
template <typename Code>
Code code_of(const std::string& name) {
  for (size_t i = 0; i < Names<Code>::count; ++i)
    if (name == Names<Code>::at(i)) return static_cast<Code>(i);
  throw pybind11::value_error(std::string(Names<Code>::what) + " '" + name + "' is unknown");
}

}  // namespace osdp

namespace pybind11::detail {

template <typename Code>
struct name_caster {
  PYBIND11_TYPE_CASTER(Code, const_name("str"));
  bool load(handle source, bool) {
    if (!isinstance<str>(source)) return false;
    value = osdp::code_of<Code>(source.cast<std::string>());
    return true;
  }
  static handle cast(Code code, return_value_policy, handle) {
    return str(osdp::Names<Code>::at(static_cast<size_t>(code))).release();
  }
};

template <>
struct type_caster<osdp::Mode> : name_caster<osdp::Mode> {};
template <>
struct type_caster<osdp::Split> : name_caster<osdp::Split> {};
template <>
struct type_caster<osdp::Recompute> : name_caster<osdp::Recompute> {};

}  // namespace pybind11::detail
