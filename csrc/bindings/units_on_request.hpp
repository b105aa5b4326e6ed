// The methods of Runtime by which a script asks for units: csrc/runtime/step/units_on_request.cpp.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "runtime/runtime.hpp"

namespace osdp::bindings {

void bind_units_on_request(pybind11::class_<runtime::Runtime, std::shared_ptr<runtime::Runtime>>& type);

}  // namespace osdp::bindings
