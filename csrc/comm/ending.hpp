// What a process group of the runtime had, and lets go of at its end.
#pragma once

#include <string>

namespace osdp::runtime {

// The group's heartbeat, its lanes, its transport and what was known of it as a part end now, or with the
// last model that still holds them. Ranks do this by themselves, at any time after the group's last
// collective.
void end_group(const std::string& group);

}  // namespace osdp::runtime
