#include "faults/collective_tracker.hpp"

#include <mutex>

#include "faults/group_health.hpp"

namespace osdp::faults {
namespace {

thread_local CollectiveTracker* the_tracker = nullptr;

}  // namespace

CollectiveTracker* CollectiveTracker::here() { return the_tracker; }
CollectiveTracker::Here::Here(CollectiveTracker* tracker) : outer_(std::exchange(the_tracker, tracker)) {}
CollectiveTracker::Here::~Here() { the_tracker = outer_; }

uint64_t CollectiveTracker::digest_at(int64_t position, const TaskName& task) {
  return Digest(task.digest).add(static_cast<uint64_t>(position)).value();
}

void CollectiveTracker::begin(TaskNamePtr task) {
  digest_ = digest_at(++position_, *task);
  std::lock_guard lock(health_.mutex_);
  task_ = std::move(task);
  busy_ = true;
}

void CollectiveTracker::end() {
  std::lock_guard lock(health_.mutex_);
  busy_ = false;
}

void CollectiveTracker::enqueued(Enqueued device) {
  std::lock_guard lock(health_.mutex_);
  trail_.add(position_, task_);
  while (!on_device_.empty() && on_device_.front().over) on_device_.pop_front();
  if (on_device_.size() == kMostEnqueued) on_device_.pop_back();  // the new one ends after it
  on_device_.push_back({position_, task_, std::move(device)});
}

void CollectiveTracker::forget_enqueued() {
  std::lock_guard lock(health_.mutex_);
  on_device_.clear();
}

void CollectiveTracker::wait(const std::shared_ptr<AbortableWait>& message, int64_t peer) {
  {
    std::lock_guard lock(health_.mutex_);
    if (health_.interruption_) std::rethrow_exception(health_.interruption_);
    current_ = message;
  }
  std::string error;
  try {
    message->wait();
  } catch (const std::exception& e) {
    error = e.what();
  }
  moved();
  std::lock_guard lock(health_.mutex_);
  current_.reset();
  if (health_.interruption_) std::rethrow_exception(health_.interruption_);
  if (!error.empty()) throw ConnectionLost(peer, error);
}

void CollectiveTracker::check() const { health_.check(); }

CollectiveTracker::Snapshot CollectiveTracker::snapshot() {
  Snapshot now{.position = position_, .asked = asked_, .progress = progress_, .busy = busy_, .task = task_};
  for (OnDevice& each : on_device_) {
    if (!each.over) each.over = each.device.over();
    if (each.over) {
      last_over_ = each.task;
      continue;
    }
    now.busy = each.device.begun();
    now.position = now.busy ? each.position : each.position - 1;
    now.task = now.busy ? each.task : last_over_;
    break;
  }
  return now;
}

void CollectiveTracker::abort_message() {
  if (current_) current_->abort();
}

}  // namespace osdp::faults
