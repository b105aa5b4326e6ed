#include "faults/trail_comparison.hpp"

#include <algorithm>
#include <sstream>
#include <thread>

namespace osdp::faults {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double kCompareEvery_s = 0.1;  // times ranks / 64
constexpr double kPiecesWait_s = 5.0;    // for another rank's tasks, once two are known to differ
constexpr const char* kDiffer = "trail/differ";

}  // namespace

std::optional<Failure> TrailComparison::compare() {
  const double every_s = kCompareEvery_s * std::max(1.0, static_cast<double>(world_) / 64);
  std::vector<TrailMark> mine = health_->trail_marks();
  const bool moved = mine != told_marks_;
  if (Seconds(Clock::now() - compared_).count() < every_s || (!moved && level_)) return std::nullopt;
  compared_ = Clock::now();
  if (moved) store_->set(trail_key("mark", rank_), encode(mine));
  told_marks_ = std::move(mine);
  if (store_->get(Failure::kKey)) return Failure();
  if (const auto differ = store_->get(kDiffer)) {
    tell_piece(*differ);
    return std::nullopt;
  }
  const auto text = store_->get(trail_key("mark", before_me()));
  const auto theirs = text ? decode_marks(*text) : std::nullopt;
  level_ = theirs && *theirs == told_marks_;
  for (size_t lane = 0; theirs && lane < theirs->size(); ++lane) {
    const auto [position, digest] = (*theirs)[lane];
    const auto ours = health_->trail_digest(lane, position);
    if (!ours) continue;
    agreed_.resize(std::max(agreed_.size(), lane + 1));
    if (*ours != digest) return find_difference(static_cast<int64_t>(lane), agreed_[lane], position);
    agreed_[lane] = std::max(agreed_[lane], position);
  }
  return std::nullopt;
}

TrailPiece TrailComparison::tell_piece(int64_t lane, int64_t agreed, int64_t position) {
  TrailPiece piece = health_->trail_piece(static_cast<size_t>(lane), agreed, position);
  store_->set(trail_key("piece", rank_), piece.encode());
  return piece;
}
void TrailComparison::tell_piece(const std::string& differ) {
  std::istringstream in(differ);
  int64_t lane = 0, agreed = 0, position = 0;
  if (in >> lane >> agreed >> position) tell_piece(lane, agreed, position);
}

Failure TrailComparison::find_difference(int64_t lane, int64_t agreed, int64_t position) {
  const std::string asked =
      std::to_string(lane) + " " + std::to_string(agreed) + " " + std::to_string(position);
  const std::string said = store_->set_first(kDiffer, asked);
  const TrailPiece mine = tell_piece(lane, agreed, position);
  if (said != asked) tell_piece(said);
  const int64_t other = before_me();
  const auto until = Clock::now() + Seconds(kPiecesWait_s);
  do {
    if (store_->get(Failure::kKey)) return Failure();
    const auto text = store_->get(trail_key("piece", other));
    const auto theirs = text ? TrailPiece::decode(*text) : std::nullopt;
    for (int64_t at = agreed + 1; theirs && at <= position; ++at) {
      const TaskName *here = mine.at(at), *there = theirs->at(at);
      if (here && there && here->digest != there->digest)
        return went_apart(at, {rank_, here}, {other, there}, health_->names());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (Clock::now() < until);
  return went_apart(agreed, position, rank_, other, health_->names());
}

}  // namespace osdp::faults
