#include "faults/trail.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

namespace osdp::faults {

void Trail::add(int64_t position, TaskNamePtr task) {
  if (position != end_ + 1) steps_.clear();
  const uint64_t before = steps_.empty() ? 0 : steps_.back().digest;
  const uint64_t digest = Digest(before).add(task->digest).value();
  steps_.push_back({std::move(task), digest});
  end_ = position;
  if (steps_.size() > kKept) steps_.pop_front();
}

TrailMark Trail::newest() const { return {end_, steps_.empty() ? 0 : steps_.back().digest}; }

std::optional<uint64_t> Trail::digest_at(int64_t position) const {
  const int64_t back = end_ - position;  // distance from the last one
  if (position < 1 || back < 0 || back >= static_cast<int64_t>(steps_.size())) return std::nullopt;
  return steps_[steps_.size() - 1 - static_cast<size_t>(back)].digest;
}

std::vector<TaskNamePtr> Trail::tasks(int64_t after, int64_t to, int64_t& first) const {
  const int64_t begin = end_ - static_cast<int64_t>(steps_.size()) + 1;
  first = std::max(after + 1, begin);
  std::vector<TaskNamePtr> found;
  for (int64_t at = first; at <= std::min(to, end_); ++at)
    found.push_back(steps_[static_cast<size_t>(at - begin)].task);
  return found;
}

std::string TrailPiece::encode() const {
  std::ostringstream out;
  out << first << '\n' << tasks.size() << '\n';
  for (const TaskName& task : tasks) write(out, task);
  return out.str();
}

std::optional<TrailPiece> TrailPiece::decode(const std::string& text) {
  std::istringstream in(text);
  TrailPiece piece;
  size_t count = 0;
  in >> piece.first >> count;
  in.ignore();
  for (; in && count > 0; --count) piece.tasks.push_back(read_task(in));
  if (!in) return std::nullopt;
  return piece;
}

const TaskName* TrailPiece::at(int64_t position) const {
  const int64_t i = position - first;
  return i >= 0 && i < static_cast<int64_t>(tasks.size()) ? &tasks[static_cast<size_t>(i)] : nullptr;
}

std::string encode(const std::vector<TrailMark>& marks) {
  std::ostringstream out;
  out << marks.size();
  for (const TrailMark& mark : marks) out << ' ' << mark.position << ' ' << mark.digest;
  return out.str();
}

std::optional<std::vector<TrailMark>> decode_marks(const std::string& text) {
  std::istringstream in(text);
  std::vector<TrailMark> marks;
  size_t count = 0;
  in >> count;
  for (; in && count > 0; --count) {
    TrailMark mark;
    in >> mark.position >> mark.digest;
    marks.push_back(mark);
  }
  if (!in) return std::nullopt;
  return marks;
}

}  // namespace osdp::faults
