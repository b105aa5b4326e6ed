// Transports: which one a group of ranks has. A kind of transport is a file here and a row in the table of
// transports.cpp.
#pragma once

#include <memory>
#include <string>

#include "comm/transports/transport.hpp"

namespace osdp::runtime {

// The first of the table that all of these ranks can have. Collective.
std::shared_ptr<Transport> make_transport(const std::shared_ptr<Peers>& peers);

// The transport of the group of that name: made once, by all of its ranks, and shared by all who use the
// group, since ranks let go of models at different times. Until it is forgotten, when the group ends.
std::shared_ptr<Transport> transport_of(const std::string& group, const std::shared_ptr<Peers>& peers);
bool is_connected(const std::string& group);  // its transport is made
void forget_transport(const std::string& group);

}  // namespace osdp::runtime
