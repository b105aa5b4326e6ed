// Transports: chooses the transport of a group. Each kind is a file here and a row in the table of
// transports.cpp.
#pragma once

#include <memory>
#include <string>

#include "comm/transports/transport.hpp"

namespace osdp::comm {

// The first transport of the table that all of these ranks can use. Collective.
std::shared_ptr<Transport> make_transport(const std::shared_ptr<Peers>& peers);

// The transport of the named group. It is created once, by all of its ranks together, and shared by all users
// of the group: ranks destroy models at different times, so a transport per model could not be recreated
// collectively. It lives until forget_transport, when the group ends.
std::shared_ptr<Transport> transport_of(const std::string& group, const std::shared_ptr<Peers>& peers);
bool is_connected(const std::string& group);  // whether its transport exists
void forget_transport(const std::string& group);

}  // namespace osdp::comm
