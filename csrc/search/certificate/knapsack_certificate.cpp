#include "search/certificate/knapsack_certificate.hpp"

namespace osdp::search {

std::string decimal(int128 v) {
  const std::string sign = v < 0 ? "-" : "";
  if (v < 0) v = -v;
  std::string digits;
  for (; v > 0 || digits.empty(); v /= 10) digits.insert(digits.begin(), static_cast<char>('0' + v % 10));
  return sign + digits;
}

int64_t proven_lower_bound(const ProblemView& problem, Multiplier multiplier) {
  const int128 p = multiplier.numerator, q = multiplier.denominator;
  if (p < 0 || q <= 0) throw InvalidProblem("the multiplier is not a fraction >= 0");
  // 2^61 (values) x 2^61 (multiplier) and the sum of the values is bounded by validate(): within 128 bits.
  int128 priced = -(p * problem.limit_bytes);
  for (const auto options : problem.operators) {
    int128 least = 0;
    bool first = true;
    for (const Option& o : options) {
      const int128 cost = q * o.time_ps + p * o.memory_bytes;
      if (first || cost < least) least = cost;
      first = false;
    }
    priced += least;
  }
  int128 bound = priced / q;
  if (priced % q > 0) ++bound;
  if (bound < -kLargestSum) bound = -kLargestSum;
  return static_cast<int64_t>(bound);
}

std::string check(const ProblemView& problem, const std::vector<int>& choices, const Certificate& claims) {
  validate(problem);
  if (choices.size() != problem.operators.size()) {
    return "there are " + std::to_string(choices.size()) + " choices for " +
           std::to_string(problem.operators.size()) + " operators";
  }
  int128 time = 0, memory = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] < 0 || static_cast<size_t>(choices[i]) >= problem.operators[i].size()) {
      return problem.name_of(i) + " has no option " + std::to_string(choices[i]);
    }
    time += problem.operators[i][choices[i]].time_ps;
    memory += problem.operators[i][choices[i]].memory_bytes;
  }
  if (time != claims.time_ps)
    return "the choices take " + decimal(time) + " ps, not " + decimal(claims.time_ps);
  if (memory != claims.memory_bytes) {
    return "the choices hold " + decimal(memory) + " bytes, not " + decimal(claims.memory_bytes);
  }
  if (memory > problem.limit_bytes) {
    return "the choices hold " + decimal(memory) + " bytes, over the limit of " +
           decimal(problem.limit_bytes);
  }
  if (claims.lower_bound_ps > claims.time_ps) return "the lower bound is above the time";
  if (claims.multiplier.numerator < 0 || claims.multiplier.denominator <= 0 ||
      claims.multiplier.numerator > kLargestSum || claims.multiplier.denominator > kLargestSum) {
    return "the multiplier is not a fraction >= 0";
  }
  const int64_t proven = proven_lower_bound(problem, claims.multiplier);
  if (claims.lower_bound_ps > proven) {
    return "the multiplier proves " + decimal(proven) + " ps only, not " + decimal(claims.lower_bound_ps);
  }
  return "";
}

}  // namespace osdp::search
