// RankNames: what errors call the ranks of a process group. A group's own numbers would mislead: beside
// tensor and pipeline parallelism, rank 1 of a model's ranks is another rank of the job.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace osdp::faults {

class RankNames {
 public:
  RankNames() = default;  // "rank 2", as the group numbers them
  // `names[i]` of rank i: "rank 6", or "rank 6 (stage 1)" of a pipeline.
  explicit RankNames(std::vector<std::string> names) : names_(std::move(names)) {}

  std::string operator()(int64_t rank) const {
    const auto at = static_cast<size_t>(rank);
    return rank >= 0 && at < names_.size() ? names_[at] : "rank " + std::to_string(rank);
  }

 private:
  std::vector<std::string> names_;
};

}  // namespace osdp::faults
