#include "runtime/watch.hpp"

#include <mutex>

#include "runtime/alarm.hpp"

namespace osdp::runtime {
namespace {

thread_local Watch* the_watch = nullptr;

}  // namespace

Watch* Watch::here() { return the_watch; }
Watch::Here::Here(Watch* watch) { the_watch = watch; }
Watch::Here::~Here() { the_watch = nullptr; }

uint64_t Watch::digest_at(int64_t position, const TaskName& task) {
  return Digest(task.digest).add(static_cast<uint64_t>(position)).value();
}

void Watch::begin(TaskNamePtr task) {
  digest_ = digest_at(++position_, *task);
  std::lock_guard lock(alarm_.mutex_);
  task_ = std::move(task);
  busy_ = true;
}

void Watch::end() {
  std::lock_guard lock(alarm_.mutex_);
  busy_ = false;
}

void Watch::wait(const std::shared_ptr<Peers::Message>& message, int64_t peer) {
  {
    std::lock_guard lock(alarm_.mutex_);
    if (alarm_.interruption_) std::rethrow_exception(alarm_.interruption_);
    current_ = message;
  }
  std::string error;
  try {
    message->wait();
  } catch (const std::exception& e) {
    error = e.what();
  }
  moved();
  std::lock_guard lock(alarm_.mutex_);
  current_.reset();
  if (alarm_.interruption_) std::rethrow_exception(alarm_.interruption_);
  if (!error.empty()) throw ConnectionLost(peer, error);
}

void Watch::check() const { alarm_.check(); }

Watch::Snapshot Watch::snapshot() const {
  return {.position = position_, .asked = asked_, .progress = progress_, .busy = busy_, .task = task_};
}

void Watch::abort_message() {
  if (current_) current_->abort();
}

}  // namespace osdp::runtime
