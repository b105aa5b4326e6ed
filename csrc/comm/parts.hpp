// Parts: subgroups of a lane's group (lines and columns). Maps their ranks to ranks of the lane's group, so
// that errors name a rank by its number in that group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace osdp::comm {

// `ranks[i]`: the rank in the lane's group of rank i of `group`. Must be set before Collectives::over(group).
void set_ranks_of_part(const std::string& group, std::vector<int64_t> ranks);
void forget_part(const std::string& group);
// Empty if `group` is not a part: its ranks are the lane's.
std::vector<int64_t> ranks_of_part(const std::string& group);

}  // namespace osdp::comm
