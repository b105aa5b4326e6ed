// The two kinds of lane, and what they have in common.
#pragma once

#include <c10/core/Device.h>

#include <exception>
#include <memory>

#include "comm/lane.hpp"

namespace osdp::runtime {

std::shared_ptr<Lane> thread_lane(std::shared_ptr<GroupHealth> health);
std::shared_ptr<Lane> stream_lane(std::shared_ptr<GroupHealth> health, c10::Device device);

// Runs the task under its label and the lane's tracker. What it throws is told as an error that knows what
// happened where; so is what interrupted the lane since.
std::exception_ptr run_task(const TaskNamePtr& name, const Lane::Task& task, CollectiveTracker& tracker,
                            GroupHealth& health);

}  // namespace osdp::runtime
