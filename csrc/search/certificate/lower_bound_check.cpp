#include "search/certificate/lower_bound_check.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace osdp::search {
namespace {

struct Alike {  // operators with equal options
  std::vector<Option> options;
  int64_t count = 0;
};

std::vector<Alike> alike_of(const ProblemView& problem) {
  const auto before = [](const Option& a, const Option& b) {
    return a.memory_bytes != b.memory_bytes ? a.memory_bytes < b.memory_bytes : a.time_ps < b.time_ps;
  };
  const auto less = [&](const std::vector<Option>& a, const std::vector<Option>& b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), before);
  };
  std::map<std::vector<Option>, int64_t, decltype(less)> counts(less);
  for (const auto options : problem.operators) {
    std::vector<Option> list(options.begin(), options.end());
    std::sort(list.begin(), list.end(), before);
    ++counts[list];
  }
  std::vector<Alike> alike;
  for (const auto& [options, count] : counts) alike.push_back({options, count});
  return alike;
}

int128 priced(const Option& o, Multiplier m) {
  return static_cast<int128>(m.denominator) * o.time_ps + static_cast<int128>(m.numerator) * o.memory_bytes;
}

int128 least_priced(const Alike& a, Multiplier m) {
  int128 least = priced(a.options[0], m);
  for (const Option& o : a.options) least = std::min(least, priced(o, m));
  return least;
}

// Whether the cheapest plan at this price exceeds the limit, so that the optimal price is higher.
bool too_low(const std::vector<Alike>& alike, Multiplier m, int64_t limit) {
  int128 memory = 0;
  for (const Alike& a : alike) {
    const int128 least = least_priced(a, m);
    int64_t bytes = kLargestSum;
    for (const Option& o : a.options) {
      if (priced(o, m) == least) bytes = std::min(bytes, o.memory_bytes);
    }
    memory += static_cast<int128>(bytes) * a.count;
  }
  return memory > limit;
}

Multiplier fraction(double price) {
  int exponent = 0;
  std::frexp(price, &exponent);
  const int shift = std::clamp(50 - exponent, 0, 60);
  return {static_cast<int64_t>(std::min(std::ldexp(price, shift), 0x1p60)), int64_t{1} << shift};
}

// The price of memory by bisection of its logarithm.
Multiplier find_price(const std::vector<Alike>& alike, int64_t limit) {
  if (!too_low(alike, {0, 1}, limit)) return {0, 1};
  double low = -60, high = 60;
  while (high - low > 1e-12 * std::max(1.0, std::abs(high))) {
    const double middle = (low + high) / 2;
    (too_low(alike, fraction(std::exp2(middle)), limit) ? low : high) = middle;
  }
  return fraction(std::exp2(high));
}

// The largest time below `bound` that a plan can have: all times differ by multiples of a common divisor.
int64_t longest_below(const std::vector<Alike>& alike, int64_t bound) {
  int64_t step = 0;
  int128 base = 0;
  for (const Alike& a : alike) {
    for (const Option& o : a.options) step = std::gcd(step, o.time_ps - a.options[0].time_ps);
    base += static_cast<int128>(a.options[0].time_ps) * a.count;
  }
  if (step == 0) return base < bound ? static_cast<int64_t>(base) : bound - 1;
  const int128 over = (bound - 1 - base) % step;
  return static_cast<int64_t>(bound - 1 - (over < 0 ? over + step : over));
}

struct Sum {
  int64_t memory, time;
};

// Sorts by memory and drops dominated sums.
void drop_worse(std::vector<Sum>& sums) {
  std::sort(sums.begin(), sums.end(), [](const Sum& a, const Sum& b) {
    return a.memory != b.memory ? a.memory < b.memory : a.time < b.time;
  });
  size_t kept = 0;
  for (const Sum& s : sums) {
    if (kept == 0 || s.time < sums[kept - 1].time) sums[kept++] = s;
  }
  sums.resize(kept);
}

// The time of the fastest plan that takes at most `target`; -1: there is none, -2: too many sums.
int64_t fastest(const std::vector<Alike>& alike, int64_t limit, int64_t target, Multiplier m, int64_t work) {
  // The largest allowed sum of a plan's reduced costs.
  int128 allowance = static_cast<int128>(m.denominator) * target + static_cast<int128>(m.numerator) * limit;
  std::vector<int128> least;
  int128 memory_left = 0, time_left = 0;  // least memory and time of the remaining operators
  for (const Alike& a : alike) {
    least.push_back(least_priced(a, m));
    allowance -= least.back() * a.count;
    int64_t fast = a.options[0].time_ps;
    for (const Option& o : a.options) fast = std::min(fast, o.time_ps);
    memory_left += static_cast<int128>(a.options[0].memory_bytes) * a.count;
    time_left += static_cast<int128>(fast) * a.count;
  }
  if (allowance < 0 || memory_left > limit || time_left > target) return -1;
  std::vector<Sum> sums{{0, 0}}, next;
  int128 least_so_far = 0;
  for (size_t g = 0; g < alike.size(); ++g) {
    int64_t fast = alike[g].options[0].time_ps;
    std::vector<Option> options;
    for (const Option& o : alike[g].options) {
      fast = std::min(fast, o.time_ps);
      if (priced(o, m) - least[g] <= allowance) options.push_back(o);
    }
    for (int64_t n = 0; n < alike[g].count; ++n) {
      memory_left -= alike[g].options[0].memory_bytes, time_left -= fast;
      least_so_far += least[g];
      next.clear();
      for (const Sum& s : sums) {
        for (const Option& o : options) {
          const Sum t{s.memory + o.memory_bytes, s.time + o.time_ps};
          if (t.memory + memory_left > limit || t.time + time_left > target) continue;
          if (priced({t.time, t.memory}, m) - least_so_far > allowance) continue;
          next.push_back(t);
        }
      }
      if ((work -= static_cast<int64_t>(sums.size() * options.size()) + 1) < 0) return -2;
      drop_worse(next);
      sums.swap(next);
      if (sums.empty()) return -1;
    }
  }
  return sums.back().time;
}

}  // namespace

BoundCheck check_bound(const ProblemView& problem, int64_t bound_ps, Multiplier multiplier, int64_t work) {
  validate(problem);
  if (multiplier.numerator > kLargestSum || multiplier.denominator > kLargestSum)
    throw InvalidProblem("the multiplier is not a fraction of numbers up to 2^61");
  BoundCheck result;
  result.given_ps = result.proven_ps = proven_lower_bound(problem, multiplier);
  const std::vector<Alike> alike = alike_of(problem);
  const int64_t limit = std::min(problem.limit_bytes, kLargestSum);  // no plan holds more
  const Multiplier other = find_price(alike, limit);
  const int64_t proven = proven_lower_bound(problem, other);
  if (proven > result.proven_ps) result.proven_ps = proven, multiplier = other;
  if (bound_ps <= result.proven_ps) {
    result.holds = BoundHolds::Yes;
    return result;
  }
  if (bound_ps > kLargestSum) bound_ps = kLargestSum + 1;
  const int64_t found = fastest(alike, limit, longest_below(alike, bound_ps), multiplier, work);
  if (found == -2) return result;
  result.holds = found < 0 ? BoundHolds::Yes : BoundHolds::No;
  result.faster_ps = std::max<int64_t>(found, 0);
  return result;
}

std::string check_all(const ProblemView& problem, const std::vector<int>& choices, const Certificate& claims,
                      int64_t work) {
  const Multiplier m = claims.multiplier;
  if (m.numerator < 0 || m.denominator <= 0 || std::max(m.numerator, m.denominator) > kLargestSum)
    return "the multiplier is not a fraction >= 0";
  if (claims.lower_bound_ps > claims.time_ps) return "the lower bound is above the time";
  const BoundCheck bound = check_bound(problem, claims.lower_bound_ps, m, work);
  Certificate plain = claims;
  plain.lower_bound_ps = std::min(claims.lower_bound_ps, bound.given_ps);
  std::string wrong = check(problem, choices, plain);
  if (!wrong.empty()) return wrong;
  const std::string claimed = std::to_string(claims.lower_bound_ps);
  if (bound.holds == BoundHolds::No)
    return "a plan takes " + std::to_string(bound.faster_ps) + ", less than the lower bound " + claimed;
  if (bound.given_ps < bound.proven_ps) {
    return "the multiplier proves " + std::to_string(bound.given_ps) + " only, another one " +
           std::to_string(bound.proven_ps);
  }
  if (bound.holds == BoundHolds::Unknown) {
    return "that no plan is faster than " + claimed + " could not be shown: the multiplier proves " +
           std::to_string(bound.given_ps) + ", and the rest needs more than " + std::to_string(work) +
           " partial sums";
  }
  return "";
}

}  // namespace osdp::search
