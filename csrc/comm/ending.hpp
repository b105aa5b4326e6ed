// Releases what the runtime keeps for a process group.
#pragma once

#include <string>

namespace osdp::comm {

// Ends the group's heartbeat, lanes and transport, and forgets its ranks (ranks_of_part); those that a model
// still holds end with the last such model. Not collective: each rank may call it at any time after the
// group's last collective.
void end_group(const std::string& group);

}  // namespace osdp::comm
