#include "runtime/alarm.hpp"

#include <algorithm>
#include <chrono>
#include <unordered_set>

namespace osdp::runtime {
namespace {

constexpr auto kExplainWait = std::chrono::milliseconds(1500);

}  // namespace

Alarm::Trouble::Trouble(std::string task, std::exception_ptr error) : label(std::move(task)) {
  try {
    std::rethrow_exception(error);
  } catch (const ConnectionLost& e) {
    text = e.what();
    connection = true;
    peer = e.peer;
  } catch (const std::exception& e) {
    text = e.what();
    kind = kind_of(e);
  } catch (...) {
    text = "unknown";
  }
}

const std::string* interned(const std::string& text) {
  static std::mutex mutex;
  static auto* all = new std::unordered_set<std::string>();  // read until the process ends
  std::lock_guard lock(mutex);
  return &*all->insert(text).first;
}

Alarm::Alarm() = default;
Alarm::~Alarm() = default;

bool Alarm::Snapshot::busy() const {
  return std::any_of(lanes.begin(), lanes.end(), [](const auto& lane) { return lane.busy; });
}

void Alarm::raised(std::string text) {
  std::lock_guard lock(mutex_);
  ++raised_;
  raised_text_ = std::move(text);
}

Watch& Alarm::add_lane() {
  std::lock_guard lock(mutex_);
  return *lanes_.emplace_back(std::make_unique<Watch>(*this));
}

std::exception_ptr Alarm::explain(Trouble trouble) {
  std::unique_lock lock(mutex_);
  if (interruption_) return interruption_;
  if (!trouble_) trouble_ = std::move(trouble);  // else another lane's, which came first
  if (explained_) told_.wait_for(lock, kExplainWait, [this] { return interruption_ != nullptr; });
  if (!interruption_) {
    std::string message = "OSDP: " + trouble_->label + " failed: ";
    if (trouble_->peer >= 0)
      message += "the connection to rank " + std::to_string(trouble_->peer) + " was lost: ";
    message += trouble_->text;
    interruption_ = make_error(trouble_->kind.value_or(ErrorKind::Rank), std::move(message));
    told_.notify_all();
  }
  return interruption_;
}

void Alarm::check() const {
  if (auto interrupted = interruption()) std::rethrow_exception(interrupted);
}

std::exception_ptr Alarm::interruption() const {
  std::lock_guard lock(mutex_);
  return interruption_;
}

Alarm::Snapshot Alarm::snapshot() const {
  std::lock_guard lock(mutex_);
  Snapshot now{.lanes = {}, .place = place_, .raised = raised_, .raised_text = raised_text_};
  for (const auto& lane : lanes_) now.lanes.push_back(lane->snapshot());
  return now;
}

std::optional<Alarm::Trouble> Alarm::trouble() const {
  std::lock_guard lock(mutex_);
  return interruption_ ? std::nullopt : trouble_;
}

void Alarm::interrupt(std::exception_ptr why) {
  std::lock_guard lock(mutex_);
  if (interruption_) return;
  interruption_ = std::move(why);
  told_.notify_all();
  for (const auto& lane : lanes_) lane->abort_message();
}

}  // namespace osdp::runtime
