#include "search/level_targets.hpp"

namespace osdp::search::levels {
namespace {

constexpr int64_t kMostTargets = 64;  // lines that cross the triangle

int128 floor_div(int128 n, int128 d) {
  const int128 q = n / d;
  return (n % d != 0 && ((n < 0) != (d < 0))) ? q - 1 : q;
}

}  // namespace

bool Targets::aim(Target& target) {
  if (!aim()) return false;
  const auto same =
      std::find_if(all_.begin(), all_.end(), [&](const Target& t) { return t.level == target.level; });
  target = same == all_.end() ? Target{target.level, 0, -1} : *same;
  return true;
}

bool Targets::aim() {
  // Not a structured binding: clang before 16 does not let a lambda use one.
  const auto& start = basis_.start;
  const auto& u = basis_.u;
  const auto& v = basis_.v;
  const auto det = basis_.det;
  all_.clear();
  // start + level v + position u: memory <= limit, time <= best - step, time + lambda memory >= line.
  const int128 room = c_.limit_bytes - start.memory;
  const int128 time = c_.best.time_ps - c_.step_ps - start.time;
  const int128 p = c_.relaxed.multiplier.numerator, q = c_.relaxed.multiplier.denominator;
  const int128 height = c_.best.time_ps - c_.step_ps - c_.relaxed.lower_bound_ps + 1;  // of the triangle
  if (height <= 0 || p == 0) return true;
  const int128 width = height * q / p + 1;
  int128 low = 0, high = 0;
  bool any = false;
  const auto corner = [&](int128 t, int128 m) {
    const int128 level = floor_div(t * u.memory - m * u.time, det);
    low = any ? std::min(low, level) : level;
    high = any ? std::max(high, level + 1) : level + 1;
    any = true;
  };
  if (width > kFar) return false;
  corner(time, room), corner(time - height, room), corner(time, room - width);
  if (high - low > kMostTargets) return false;
  for (int128 level = low; level <= high; ++level) {
    int128 least = -kFar, most = kFar;
    // slope * position <= bound
    const auto cut = [&](int128 slope, int128 bound) {
      if (slope > 0) {
        most = std::min(most, floor_div(bound, slope));
      } else if (slope < 0) {
        least = std::max(least, -floor_div(bound, -slope));
      } else if (bound < 0) {
        most = least - 1;
      }
    };
    cut(u.memory, room - level * v.memory);
    cut(u.time, time - level * v.time);
    cut(-u.memory, width - room + level * v.memory);
    cut(-u.time, height - time + level * v.time);
    if (least > most) continue;
    if (least == -kFar || most == kFar) return false;
    all_.push_back({static_cast<int64_t>(level), static_cast<int64_t>(least), static_cast<int64_t>(most)});
  }
  return true;
}

}  // namespace osdp::search::levels
