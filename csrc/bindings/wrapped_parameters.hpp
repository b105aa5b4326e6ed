// Runtime.wrap_parameters: DTensors around parameters, for csrc/runtime/step/wrapped_parameters.hpp.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "runtime/runtime.hpp"

namespace osdp::bindings {

void bind_wrapped_parameters(pybind11::class_<runtime::Runtime, std::shared_ptr<runtime::Runtime>>& type);

}  // namespace osdp::bindings
