// Adapts c10d's process groups and stores to the interfaces that the torch-free parts of the runtime use.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "comm/peers.hpp"
#include "faults/group_health.hpp"
#include "faults/store.hpp"

namespace osdp::comm {

std::shared_ptr<Peers> peers_of(c10::intrusive_ptr<c10d::Backend> backend);
// Aborts the backend's pending operations (Backend::abort, which some backends do not implement).
std::shared_ptr<faults::Abortable> abortable(c10::intrusive_ptr<c10d::Backend> backend);
std::shared_ptr<faults::Store> store_of(c10::intrusive_ptr<c10d::Store> store);

}  // namespace osdp::comm
