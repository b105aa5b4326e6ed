#include "search/knapsack/lattice_bound.hpp"

#include <algorithm>
#include <utility>

namespace osdp::search {
namespace {

int128 floor_div(int128 n, int128 d) {
  const int128 q = n / d;
  return (n % d != 0 && ((n < 0) != (d < 0))) ? q - 1 : q;
}
int128 ceil_div(int128 n, int128 d) { return -floor_div(-n, d); }
int128 modulo(int128 n, int128 d) { return d == 0 ? n : n - floor_div(n, d) * d; }

// (x * y) mod d for d < 2^125, even if the product needs more than 128 bits.
int128 multiply(int128 x, int128 y, int128 d) {
  constexpr int128 kSmall = int128{1} << 62;
  y = modulo(y, d);
  if (d == 0 || (x < kSmall && -x < kSmall && y < kSmall && -y < kSmall)) return modulo(x * y, d);
  const bool negative = x < 0;
  int128 sum = 0;
  for (int128 left = negative ? -x : x; left != 0; left /= 2, y = modulo(2 * y, d)) {
    if (left % 2 != 0) sum = modulo(sum + y, d);
  }
  return modulo(negative ? -sum : sum, d);
}

// floor(n / d) for n, n + step, n + 2 step, ... without dividing again; rest = n - value * d.
struct Quotient {
  Quotient(int128 n, int128 divisor, int128 step)
      : value(floor_div(n, divisor)),
        rest(n - value * divisor),
        d(divisor),
        by(floor_div(step, divisor)),
        by_rest(step - by * divisor) {}
  void next() {
    value += by;
    rest += by_rest;
    if (rest >= d) rest -= d, ++value;
  }
  int128 value, rest;

 private:
  const int128 d, by, by_rest;
};

// Adds the vector (x, y) to the lattice: Euclid's algorithm on the time components; the remaining pure memory
// vector is merged into d.
void add(int128& a, int128& b, int128& d, int128 x, int128 y) {
  while (x != 0) {
    const int128 q = a / x;
    const int128 rest_a = a - q * x, rest_b = modulo(b - multiply(q, y, d), d);
    a = std::exchange(x, rest_a);
    b = std::exchange(y, rest_b);
  }
  if (a < 0) a = -a, b = -b;
  if (y < 0) y = -y;
  while (y != 0) d = std::exchange(y, d % y);
  b = modulo(b, d);
}

}  // namespace

// Note [Lattice lines]
// A lattice vector u = (-s, w), s >= 0, w > 0, whose slope s / w is at most lambda, cuts the lattice into
// parallel lines. Along a line, more memory means less time and a larger T + lambda M. So the best point of a
// line is the one with the most memory within the limit, and if that point is below the Lagrangian line, so
// are all points with less memory. Lines are det / w apart in time and a line's best point is less than s
// above the line's value at the limit: with u from the sail of the lattice (consecutive vectors of a
// continued fraction) few lines need to be examined. The value found does not depend on u.
Lattice make_lattice(const std::vector<Group>& groups) {
  int128 a = 0, b = 0, d = 0;
  Lattice result;
  for (const auto& g : groups) {
    result.base_time_ps += g.count * g.options[0].time_ps;
    result.base_memory_bytes += g.count * g.options[0].memory_bytes;
    for (size_t k = 1; k < g.options.size(); ++k) {
      add(a, b, d, g.options[0].time_ps - g.options[k].time_ps,
          g.options[0].memory_bytes - g.options[k].memory_bytes);
    }
    if (a == 1 && d == 1) break;
  }
  // A memory period beyond all memory carries no information: keep only the time period.
  if (d > kLargestSum) b = 0, d = 1;
  result.a = static_cast<int64_t>(a);
  result.b = static_cast<int64_t>(b);  // with d == 0 every vector is a multiple of (a, b), both within int64
  result.d = static_cast<int64_t>(d);
  return result;
}

int64_t lattice_bound(const Lattice& l, int64_t limit, int64_t bound, Multiplier lambda) {
  if (l.a == 0) return std::max(bound, l.base_time_ps);  // all plans take the same time
  if (lambda.numerator == 0) return bound;
  const int128 p = lambda.numerator, q = lambda.denominator;
  const int128 t0 = l.base_time_ps, m0 = l.base_memory_bytes;
  constexpr int kMostSteps = 2000, kMostLines = 20000;
  if (l.d == 0) {  // one line only, falling in time with memory: (a, b) with b < 0
    if (l.b >= 0) return bound;
    const int128 steps = floor_div(limit - m0, -static_cast<int128>(l.b));
    const int128 t = t0 - steps * l.a;  // the fastest point within the limit
    return std::max<int64_t>(bound, static_cast<int64_t>(t));
  }
  // u = (-s, w), the last sail vector that is not steeper than lambda, and v, which leads to the next slower
  // line. Invariant: vt * w + vm * s = a * d.
  int128 s = 0, w = l.d, vt = l.a, vm = l.b;
  int128 next_s = l.a, next_w = l.d - l.b;
  for (int step = 0; step < kMostSteps && next_w > 0 && next_s < kLargestSum && next_s * q <= p * next_w;
       ++step) {
    const int128 c = ceil_div(w, next_w);
    vt = -s, vm = w;
    s = std::exchange(next_s, c * next_s - s);
    w = std::exchange(next_w, c * next_w - w);
  }
  const int128 det = static_cast<int128>(l.a) * l.d;
  // Height of a point above the base along lines: (t - t0) * w + (m - m0) * s = i * det.
  // The Lagrangian line at the limit: t >= bound there, so i * det >= (bound - t0) * w + (limit - m0) * s -
  // (slack).
  const int128 room = limit - m0;
  int128 line = floor_div((static_cast<int128>(bound) - t0) * w + room * s, det) - 1;
  if (vm % w == 0) {  // every line has the same remaining memory, so all excluded lines are skipped at once
    const int128 rest = room - line * vm, left = modulo(rest, w);
    const int128 t = t0 + line * vt - floor_div(rest, w) * s, last = bound - 1 + floor_div(p * left, q);
    if (t <= last) line += (last - t) / (det / w) + 1;
  }
  Quotient floor_time(line * det - room * s + w - 1, w, det);  // the line's time at the limit, relative to t0
  Quotient along(room - line * vm, w, -vm);  // steps of u to the most memory within the limit
  int128 start = t0 + line * vt, best = -1;
  for (int n = 0; n < kMostLines; ++n) {
    if (best >= 0 && floor_time.value + t0 >= best) return std::max(bound, static_cast<int64_t>(best));
    const int128 t = start - along.value * s, left = along.rest;  // left: limit - memory
    // T + lambda M >= bound' + lambda limit, with bound' > bound - 1 (bound was rounded up).
    if ((t - bound + 1) * q > p * left && t >= bound && (best < 0 || t < best)) best = t;
    start += vt;
    floor_time.next();
    along.next();
  }
  // Too many lines: each line before this one is excluded or has its best point in `best`, and later ones are
  // no better than this line's floor.
  if (best < 0 || floor_time.value + t0 < best) best = floor_time.value + t0;
  return std::max(bound, static_cast<int64_t>(best));
}

}  // namespace osdp::search
