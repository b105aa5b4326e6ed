#include "faults/group_health.hpp"

#include <algorithm>
#include <chrono>
#include <unordered_set>

namespace osdp::faults {
namespace {

// A heart is told of a failure in a tenth of a second, on a busy machine in seconds; this long it may only be
// stuck in a store that does not answer.
constexpr auto kExplainWait = std::chrono::seconds(10);

}  // namespace

GroupHealth::Trouble::Trouble(std::string task, std::exception_ptr error) : label(std::move(task)) {
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
  static auto* all = new std::unordered_set<std::string>();  // never destroyed: read until the process ends
  std::lock_guard lock(mutex);
  return &*all->insert(text).first;
}

GroupHealth::GroupHealth() = default;
GroupHealth::~GroupHealth() = default;

bool GroupHealth::Snapshot::busy() const {
  return std::any_of(lanes.begin(), lanes.end(), [](const auto& lane) { return lane.busy; });
}

void GroupHealth::raised(std::string text) {
  std::lock_guard lock(mutex_);
  ++raised_;
  raised_text_ = without_backtrace(std::move(text));
}

void GroupHealth::name_ranks(RankNames names) {
  std::lock_guard lock(mutex_);
  names_ = std::move(names);
}

RankNames GroupHealth::names() const {
  std::lock_guard lock(mutex_);
  return names_;
}

CollectiveTracker& GroupHealth::add_lane() {
  std::lock_guard lock(mutex_);
  CollectiveTracker& lane = *lanes_.emplace_back(std::make_unique<CollectiveTracker>());
  if (interruption_) lane.interrupt(interruption_);
  return lane;
}

std::exception_ptr GroupHealth::explain(Trouble trouble) {
  std::unique_lock lock(mutex_);
  if (interruption_) return interruption_;
  if (!trouble_) trouble_ = std::move(trouble);  // another lane's trouble may have come first
  if (explained_) told_.wait_for(lock, kExplainWait, [this] { return interruption_ != nullptr; });
  if (!interruption_) {
    std::string message = "OSDP: " + trouble_->label + " failed: ";
    if (trouble_->peer >= 0) message += "the connection to " + names_(trouble_->peer) + " was lost: ";
    message += trouble_->text;
    const ErrorKind kind = trouble_->kind.value_or(ErrorKind::Rank);
    lock.unlock();
    interrupt(make_error(kind, std::move(message)));
    lock.lock();
  }
  return interruption_;
}

void GroupHealth::check() const {
  if (auto interrupted = interruption()) std::rethrow_exception(interrupted);
}

std::exception_ptr GroupHealth::interruption() const {
  std::lock_guard lock(mutex_);
  return interruption_;
}

GroupHealth::Snapshot GroupHealth::snapshot() {
  std::lock_guard lock(mutex_);
  Snapshot now{.lanes = {}, .place = place_, .raised = raised_, .raised_text = raised_text_};
  for (const auto& lane : lanes_) now.lanes.push_back(lane->snapshot());
  return now;
}

std::vector<TrailMark> GroupHealth::trail_marks() const {
  std::lock_guard lock(mutex_);
  std::vector<TrailMark> marks;
  for (const auto& lane : lanes_) marks.push_back(lane->trail_mark());
  return marks;
}

std::optional<uint64_t> GroupHealth::trail_digest(size_t lane, int64_t position) const {
  std::lock_guard lock(mutex_);
  return lane < lanes_.size() ? lanes_[lane]->trail_digest(position) : std::nullopt;
}

TrailPiece GroupHealth::trail_piece(size_t lane, int64_t after, int64_t to) const {
  std::lock_guard lock(mutex_);
  return lane < lanes_.size() ? lanes_[lane]->trail_piece(after, to) : TrailPiece();
}

void GroupHealth::aborts(const std::shared_ptr<Abortable>& backend) {
  {
    std::lock_guard lock(mutex_);
    std::erase_if(backends_, [](const auto& each) { return each.expired(); });
    backends_.push_back(backend);
    if (!interruption_) return;
  }
  backend->abort();
}

std::optional<GroupHealth::Trouble> GroupHealth::trouble() const {
  std::lock_guard lock(mutex_);
  return interruption_ ? std::nullopt : trouble_;
}

void GroupHealth::interrupt(std::exception_ptr why) {
  std::vector<std::weak_ptr<Abortable>> backends;
  {
    std::lock_guard lock(mutex_);
    if (interruption_) return;
    interruption_ = std::move(why);
    told_.notify_all();
    for (const auto& lane : lanes_) lane->interrupt(interruption_);
    backends = backends_;
  }
  for (const auto& each : backends)
    if (const auto backend = each.lock()) backend->abort();
}

}  // namespace osdp::faults
