#include "comm/parts.hpp"

#include <map>
#include <mutex>

namespace osdp::comm {
namespace {

struct Parts {
  std::mutex mutex;
  std::map<std::string, std::vector<int64_t>> ranks;
};

Parts& parts() {
  static auto* all = new Parts();
  return *all;
}

}  // namespace

void set_ranks_of_part(const std::string& group, std::vector<int64_t> ranks) {
  std::lock_guard lock(parts().mutex);
  parts().ranks[group] = std::move(ranks);
}

void forget_part(const std::string& group) {
  std::lock_guard lock(parts().mutex);
  parts().ranks.erase(group);
}

std::vector<int64_t> ranks_of_part(const std::string& group) {
  std::lock_guard lock(parts().mutex);
  const auto found = parts().ranks.find(group);
  return found == parts().ranks.end() ? std::vector<int64_t>() : found->second;
}

}  // namespace osdp::comm
