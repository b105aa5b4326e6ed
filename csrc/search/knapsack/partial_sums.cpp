#include "search/knapsack/partial_sums.hpp"

namespace osdp::search {

void drop_dominated(std::vector<Sum>& list) {
  size_t kept = 0;
  for (const Sum& s : list) {
    if (kept == 0 || s.time < list[kept - 1].time) list[kept++] = s;
  }
  list.resize(kept);
}

}  // namespace osdp::search
