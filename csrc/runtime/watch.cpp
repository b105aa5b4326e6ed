#include "runtime/watch.hpp"

#include <chrono>
#include <functional>
#include <unordered_set>

namespace osdp::runtime {
namespace {

constexpr auto kExplainWait = std::chrono::milliseconds(1500);

thread_local Watch* the_watch = nullptr;

Watch::Trouble trouble_of(std::exception_ptr error) {
  Watch::Trouble trouble{.error = error, .text = "unknown", .kind = {}};
  try {
    std::rethrow_exception(error);
  } catch (const ConnectionLost& e) {
    trouble.text = e.what();
    trouble.connection = true;
    trouble.peer = e.peer;
  } catch (const c10::Error& e) {
    trouble.text = e.what_without_backtrace();
  } catch (const std::exception& e) {
    trouble.text = e.what();
    trouble.kind = kind_of(e);
  } catch (...) {
  }
  return trouble;
}

}  // namespace

const std::string* interned(const std::string& text) {
  static std::mutex mutex;
  static auto* all = new std::unordered_set<std::string>();  // read until the process ends
  std::lock_guard lock(mutex);
  return &*all->insert(text).first;
}

Watch* Watch::here() { return the_watch; }
Watch::Here::Here(Watch* watch) { the_watch = watch; }
Watch::Here::~Here() { the_watch = nullptr; }

void Watch::raised(std::string text) {
  std::lock_guard lock(mutex_);
  ++raised_;
  raised_asked_ = asked_;
  raised_text_ = std::move(text);
}

int Watch::tag_at(int64_t position, const std::string& label) {
  const size_t hash = std::hash<std::string>()(label) * 31 + static_cast<size_t>(position);
  return static_cast<int>((hash ^ (hash >> 32)) & 0x7fffffff);
}

void Watch::begin(const std::string& label) {
  tag_ = tag_at(++position_, label);
  std::lock_guard lock(mutex_);
  label_ = label;
  busy_ = true;
}

void Watch::end() {
  std::lock_guard lock(mutex_);
  busy_ = false;
}

void Watch::wait(const c10::intrusive_ptr<c10d::Work>& work, int64_t peer) {
  {
    std::lock_guard lock(mutex_);
    if (interruption_) std::rethrow_exception(interruption_);
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
  std::lock_guard lock(mutex_);
  current_.reset();
  if (interruption_) std::rethrow_exception(interruption_);
  if (!error.empty()) throw ConnectionLost(peer, error);
}

std::exception_ptr Watch::explain(std::exception_ptr error) {
  std::unique_lock lock(mutex_);
  if (interruption_) return interruption_;
  trouble_ = trouble_of(error);
  if (explained_) told_.wait_for(lock, kExplainWait, [this] { return interruption_ != nullptr; });
  if (!interruption_) {
    std::string message = "OSDP: " + label_ + " failed: " + trouble_->text;
    interruption_ = make_error(trouble_->kind.value_or(ErrorKind::Rank), std::move(message));
  }
  return interruption_;
}

void Watch::check() const {
  if (auto interrupted = interruption()) std::rethrow_exception(interrupted);
}

std::exception_ptr Watch::interruption() const {
  std::lock_guard lock(mutex_);
  return interruption_;
}

Watch::Snapshot Watch::snapshot() const {
  std::lock_guard lock(mutex_);
  return {.position = position_,
          .asked = asked_,
          .progress = progress_,
          .busy = busy_,
          .label = label_,
          .place = place_,
          .raised = raised_,
          .raised_asked = raised_asked_,
          .raised_text = raised_text_};
}

std::optional<Watch::Trouble> Watch::trouble() const {
  std::lock_guard lock(mutex_);
  return interruption_ ? std::nullopt : trouble_;
}

void Watch::interrupt(std::exception_ptr why) {
  std::lock_guard lock(mutex_);
  if (interruption_) return;
  interruption_ = std::move(why);
  told_.notify_all();
  try {
    if (current_) current_->abort();
  } catch (
      const std::exception&) {  // only messages of the ring can be interrupted; others end with their timeout
  }
}

}  // namespace osdp::runtime
