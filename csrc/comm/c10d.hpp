// c10d's process groups and stores, as the parts of the runtime see them that need no torch.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "comm/peers.hpp"
#include "faults/group_health.hpp"
#include "faults/store.hpp"

namespace osdp::runtime {

std::shared_ptr<Peers> peers_of(c10::intrusive_ptr<c10d::Backend> backend);
// What ends what the backend has under way (Backend::abort; of some backends that is nothing).
std::shared_ptr<Abortable> abortable(c10::intrusive_ptr<c10d::Backend> backend);
std::shared_ptr<Store> store_of(c10::intrusive_ptr<c10d::Store> store);

}  // namespace osdp::runtime
