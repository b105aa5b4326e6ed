#include "faults/collective_tracker.hpp"

#include <utility>

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
  std::lock_guard lock(mutex_);
  task_ = std::move(task);
  busy_ = true;
}

void CollectiveTracker::end() {
  std::lock_guard lock(mutex_);
  busy_ = false;
}

void CollectiveTracker::enqueued(Enqueued device) {
  std::lock_guard lock(mutex_);
  trail_.add(position_, task_);
  while (!on_device_.empty() && on_device_.front().over) on_device_.pop_front();
  if (on_device_.size() == kMostEnqueued) on_device_.pop_back();  // the new one ends after it
  on_device_.push_back({position_, task_, std::move(device)});
}

void CollectiveTracker::forget_enqueued() {
  std::lock_guard lock(mutex_);
  on_device_.clear();
}

void CollectiveTracker::wait(const std::shared_ptr<AbortableWait>& message, int64_t peer) {
  {
    std::lock_guard lock(mutex_);
    if (interruption_) std::rethrow_exception(interruption_);
    current_ = message;
  }
  std::string error;
  try {
    message->wait();
  } catch (const std::exception& e) {
    error = e.what();
  }
  moved();
  std::lock_guard lock(mutex_);
  current_.reset();
  if (interruption_) std::rethrow_exception(interruption_);
  if (!error.empty()) throw ConnectionLost(peer, error);
}

void CollectiveTracker::check() const {
  std::lock_guard lock(mutex_);
  if (interruption_) std::rethrow_exception(interruption_);
}

void CollectiveTracker::interrupt(std::exception_ptr why) {
  std::lock_guard lock(mutex_);
  interruption_ = std::move(why);
  if (current_) current_->abort();
}

CollectiveTracker::Snapshot CollectiveTracker::snapshot() {
  std::lock_guard lock(mutex_);
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

TrailMark CollectiveTracker::trail_mark() const {
  std::lock_guard lock(mutex_);
  return trail_.newest();
}

std::optional<uint64_t> CollectiveTracker::trail_digest(int64_t position) const {
  std::lock_guard lock(mutex_);
  return trail_.digest_at(position);
}

TrailPiece CollectiveTracker::trail_piece(int64_t after, int64_t to) const {
  std::lock_guard lock(mutex_);
  TrailPiece piece;
  for (const TaskNamePtr& task : trail_.tasks(after, to, piece.first)) piece.tasks.push_back(*task);
  return piece;
}

}  // namespace osdp::faults
