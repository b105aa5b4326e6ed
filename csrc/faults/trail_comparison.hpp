// TrailComparison: compares what this rank has enqueued with the rank before it, through the store, and finds
// the first collective in which they differ: see Note [Ranks that go apart unnoticed]. Used by the
// heartbeat's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "faults/diagnosis.hpp"
#include "faults/group_health.hpp"
#include "faults/store.hpp"
#include "faults/trail.hpp"

namespace osdp::faults {

class TrailComparison {
 public:
  TrailComparison(std::shared_ptr<Store> store, int64_t rank, int64_t world,
                  std::shared_ptr<GroupHealth> health)
      : store_(std::move(store)), rank_(rank), world_(world), health_(std::move(health)) {}

  // Called on every tick; compares when it is time. The failure if the two ranks differ; an empty one if the
  // store holds one already, which all adopt. Throws if the store does not answer.
  std::optional<Failure> compare();

 private:
  int64_t before_me() const { return (rank_ + world_ - 1) % world_; }
  static std::string trail_key(const char* what, int64_t rank) {
    return std::string("trail/") + what + "/" + std::to_string(rank);
  }
  // Stores this rank's tasks after `agreed`. `differ`: "lane agreed position", from the rank that found the
  // difference first.
  TrailPiece tell_piece(int64_t lane, int64_t agreed, int64_t position);
  void tell_piece(const std::string& differ);
  Failure find_difference(int64_t lane, int64_t agreed, int64_t position);

  const std::shared_ptr<Store> store_;
  const int64_t rank_, world_;
  const std::shared_ptr<GroupHealth> health_;
  std::chrono::steady_clock::time_point compared_{};
  std::vector<TrailMark> told_marks_;
  bool level_ = true;            // the rank before this one had reported the same marks
  std::vector<int64_t> agreed_;  // per lane: the last position at which the two agreed
};

}  // namespace osdp::faults
