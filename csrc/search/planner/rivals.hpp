// Variants of the search with other objectives, other limits or smaller spaces. Their plans are simulated
// along with the problem's own.
//
// Note [Rivals]
// The objective charges every operator its own latency and weights all communication equally. In a step,
// neighbours share a latency, most of all if they have one mode; so some rivals have no latency, and some no
// slices. Rivals with a smaller limit leave memory that polishing uses where it shortens the simulated step.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "search/problem/request.hpp"

namespace osdp::search {

struct Rival {
  double exposed = 1;  // weight of communication, as a multiple of the machine's
  double of_limit = 1;
  bool latency = true;  // false: alpha is 0
  bool slices = true;
  bool recomputes = true;

  // Whether its lower bound holds for all plans of the problem.
  bool whole_problem() const { return of_limit == 1 && latency && slices && recomputes; }
};

inline constexpr Rival kRivals[] = {
    {.exposed = 1},    {.exposed = 0.3},      {.exposed = 0.1},   {.exposed = 0.03},
    {.exposed = 3},    {.exposed = 30},       {.of_limit = 0.95}, {.of_limit = 0.9},
    {.of_limit = 0.8}, {.of_limit = 0.7},     {.latency = false}, {.latency = false, .slices = false},
    {.slices = false}, {.recomputes = false},
};

// The weight of communication in a rival's objective.
inline double exposed_of(const Request& problem, const Rival& rival) {
  const double own = problem.device.exposed;
  return rival.exposed == 1 ? own : (own > 0 ? own : 1) * rival.exposed;
}

// The rival's request; none if it would equal another rival's. In smaller spaces options keep their indices.
inline std::optional<Request> request_of(const Request& problem, const Rival& rival) {
  Request request = problem;
  request.device.exposed = exposed_of(problem, rival);
  request.limit_bytes = std::llround(static_cast<double>(problem.limit_bytes) * rival.of_limit);
  if (!rival.recomputes) {
    const auto& ways = problem.recompute;
    if (ways.size() == 1 || std::find(ways.begin(), ways.end(), Recompute::None) == ways.end()) return {};
    request.recompute = {Recompute::None};
  }
  if (!rival.slices) {
    if (problem.space.granularities.empty()) return {};
    request.space.granularities.clear();
  }
  if (!rival.latency) {
    Device& device = request.device;
    for (Collective* c :
         {&device.all_gather, &device.reduce_scatter, &device.all_reduce, &device.between_hosts})
      c->alpha_s = 0;
  }
  return request;
}

}  // namespace osdp::search
