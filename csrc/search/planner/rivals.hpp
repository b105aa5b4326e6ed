// Searches of other objectives, other limits and smaller spaces: their plans are played beside the problem's
// own.
//
// Note [Rivals]
// The objective charges each operator for its own latency, and all communication alike. In a step neighbours
// share a latency, most where they have one mode; so plans are searched that pay none, in one piece, too.
// What memory a plan leaves, polishing uses where it shows in the played step.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "search/problem/request.hpp"

namespace osdp::search {

struct Rival {
  double exposed = 1;  // weight of communication, times the machine's
  double of_limit = 1;
  bool latency = true;  // false: collectives have none
  bool slices = true;
  bool recomputes = true;

  // Whether what it proves holds for all plans of the problem.
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

// What the rival searches for; none where it would be another rival's. Options keep their places in smaller
// spaces.
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
