#include "comm/lane.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Type.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <map>
#include <mutex>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "comm/c10d.hpp"
#include "comm/ending.hpp"
#include "comm/lane_kinds.hpp"
#include "comm/parts.hpp"
#include "comm/transports/transports.hpp"
#include "faults/heartbeat.hpp"

namespace osdp::comm {
namespace {

faults::GroupHealth::Trouble trouble_of(const std::string& label, std::exception_ptr error) {
  faults::GroupHealth::Trouble trouble(label, error);
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    trouble.text = e.what_without_backtrace();
  } catch (const std::exception& e) {
    if (trouble.text.empty())  // raised in Python, by a dispatch mode: only Python knows its text
      trouble.text = "an operator raised a " + c10::demangle(typeid(e).name()) + " without a text";
  } catch (...) {
  }
  return trouble;
}

}  // namespace

std::exception_ptr run_task(const faults::TaskNamePtr& name, const Lane::Task& task,
                            faults::CollectiveTracker& tracker, faults::GroupHealth& health) {
  if (auto interrupted = health.interruption()) return interrupted;
  const faults::CollectiveTracker::Here here(&tracker);
  c10::InferenceMode no_inference(false);
  at::NoGradGuard no_grad;
  RECORD_FUNCTION(name->label, std::vector<c10::IValue>());
  tracker.begin(name);
  try {
    task();
  } catch (...) {
    return health.explain(trouble_of(name->label, std::current_exception()));
  }
  tracker.end();
  return nullptr;
}

namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::pair<std::string, c10::Device>, std::shared_ptr<Lane>,
           decltype([](const auto& a, const auto& b) {
             return std::tuple(a.first, a.second.str()) < std::tuple(b.first, b.second.str());
           })>
      lanes;
  std::vector<std::weak_ptr<Lane>> all;  // those of ended groups too, which a model may hold
};

Registry& registry() {
  static auto* r = new Registry();  // never destroyed: shutdown() ends the threads while torch is usable
  return *r;
}

std::string name_beside(const std::string& group, const char* what) { return group + " " + what; }

// Requires the registry's mutex, as the next does.
std::shared_ptr<Lane> made(std::shared_ptr<faults::GroupHealth> health, c10::Device device) {
  auto& all = registry().all;
  std::erase_if(all, [](const auto& lane) { return lane.expired(); });
  std::shared_ptr<Lane> lane =
      device.is_cpu() ? thread_lane(std::move(health)) : stream_lane(std::move(health), device);
  all.push_back(lane);
  return lane;
}

// `beside`: a new lane shares its GroupHealth; null: it gets a new one.
std::shared_ptr<Lane> lane_of(const std::string& name, c10::Device device, const Lane* beside) {
  auto& lane = registry().lanes[{name, device}];
  if (!lane)
    lane =
        made(beside ? beside->health().shared_from_this() : std::make_shared<faults::GroupHealth>(), device);
  return lane;
}

}  // namespace

std::shared_ptr<Lane> Lane::of(const std::string& group, c10::Device device) {
  std::lock_guard lock(registry().mutex);
  return lane_of(group, device, nullptr);
}

std::shared_ptr<Lane> Lane::apart(c10::Device device) {
  std::lock_guard lock(registry().mutex);
  return made(std::make_shared<faults::GroupHealth>(), device);
}

std::shared_ptr<Lane> Lane::beside(const std::string& group, const char* what, c10::Device device) {
  std::lock_guard lock(registry().mutex);
  const std::shared_ptr<Lane> first = lane_of(group, device, nullptr);
  return lane_of(name_beside(group, what), device, first.get());
}

void start_heartbeat(const std::string& group, c10::Device device, double timeout_s) {
  auto process_group = c10d::resolve_process_group(group);
  if (process_group->getSize() < 2) return;
  auto store = c10::make_intrusive<c10d::PrefixStore>("heartbeat/", process_group->getStore()->clone());
  faults::Heartbeat::start(store_of(std::move(store)), process_group->getRank(), process_group->getSize(),
                           timeout_s, Lane::of(group, device)->health().shared_from_this());
}

void end_group(const std::string& group) {
  std::vector<std::shared_ptr<Lane>> ending;
  {
    std::lock_guard lock(registry().mutex);
    for (auto at = registry().lanes.begin(); at != registry().lanes.end();) {
      const std::string& name = at->first.first;
      const bool ours = name == group || name == name_beside(group, Lane::kBetweenLines) ||
                        name == name_beside(group, Lane::kReductions);
      if (ours) ending.push_back(std::move(at->second));
      at = ours ? registry().lanes.erase(at) : std::next(at);
    }
  }
  for (const auto& lane : ending) faults::Heartbeat::end(lane->health());
  for (const auto& lane : ending) lane->end();
  forget_transport(group);
  forget_part(group);
}

void Lane::shutdown() {
  std::vector<std::shared_ptr<Lane>> ending;
  {
    std::lock_guard lock(registry().mutex);
    for (const auto& each : registry().all)
      if (auto lane = each.lock()) ending.push_back(std::move(lane));
    registry().lanes.clear();
  }
  for (const auto& lane : ending) lane->end();
}

}  // namespace osdp::comm
