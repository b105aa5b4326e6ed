// The two kinds of lane, and their shared code.
#pragma once

#include <c10/core/Device.h>

#include <exception>
#include <memory>

#include "comm/lane.hpp"

namespace osdp::comm {

std::shared_ptr<Lane> thread_lane(std::shared_ptr<faults::GroupHealth> health);
std::shared_ptr<Lane> stream_lane(std::shared_ptr<faults::GroupHealth> health, c10::Device device);

// Runs the task under its profiler label and the lane's tracker. Returns null, or the task's exception
// extended by GroupHealth with what happened on other ranks, or the exception that interrupted the lane.
std::exception_ptr run_task(const faults::TaskNamePtr& name, const Lane::Task& task,
                            faults::CollectiveTracker& tracker, faults::GroupHealth& health);

}  // namespace osdp::comm
