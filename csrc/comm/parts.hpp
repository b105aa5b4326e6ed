// Parts: groups of some of the ranks of a lane's group (lines and columns), and who their ranks are there, so
// that errors name a rank as everybody knows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace osdp::runtime {

// `ranks[i]`: rank i of `group`, in the lane's group. Before collectives over it are made.
void set_ranks_of_part(const std::string& group, std::vector<int64_t> ranks);
void forget_part(const std::string& group);
// Empty: it is not a part, its ranks are the lane's.
std::vector<int64_t> ranks_of_part(const std::string& group);

}  // namespace osdp::runtime
