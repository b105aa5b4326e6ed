#include "runtime/watch.hpp"

#include <functional>
#include <mutex>

#include "runtime/alarm.hpp"

namespace osdp::runtime {
namespace {

thread_local Watch* the_watch = nullptr;

}  // namespace

Watch* Watch::here() { return the_watch; }
Watch::Here::Here(Watch* watch) { the_watch = watch; }
Watch::Here::~Here() { the_watch = nullptr; }

int Watch::tag_at(int64_t position, const std::string& label) {
  const size_t hash = std::hash<std::string>()(label) * 31 + static_cast<size_t>(position);
  return static_cast<int>((hash ^ (hash >> 32)) & 0x7fffffff);
}

void Watch::begin(const std::string& label) {
  tag_ = tag_at(++position_, label);
  std::lock_guard lock(alarm_.mutex_);
  label_ = label;
  busy_ = true;
}

void Watch::end() {
  std::lock_guard lock(alarm_.mutex_);
  busy_ = false;
}

void Watch::wait(const c10::intrusive_ptr<c10d::Work>& work, int64_t peer) {
  {
    std::lock_guard lock(alarm_.mutex_);
    if (alarm_.interruption_) std::rethrow_exception(alarm_.interruption_);
    current_ = work;
  }
  std::string error;
  try {
    work->wait();
  } catch (const c10::Error& e) {
    error = e.what_without_backtrace();
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
  return {.position = position_, .asked = asked_, .progress = progress_, .busy = busy_, .label = label_};
}

void Watch::abort_message() {
  try {
    if (current_) current_->abort();
  } catch (
      const std::exception&) {  // only messages of the ring can be interrupted; others end with their timeout
  }
}

}  // namespace osdp::runtime
