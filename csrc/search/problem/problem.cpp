#include "search/problem/problem.hpp"

#include <algorithm>

namespace osdp::search {

void validate(const ProblemView& problem) {
  if (problem.operators.empty()) throw InvalidProblem("the problem has no operators");
  if (problem.limit_bytes < 0) {
    throw InvalidProblem("the memory limit is negative: " + std::to_string(problem.limit_bytes) + " bytes");
  }
  int64_t time = 0, memory = 0;
  for (size_t i = 0; i < problem.operators.size(); ++i) {
    const auto options = problem.operators[i];
    if (options.empty()) throw InvalidProblem(problem.name_of(i) + " has no options");
    if (options.size() > kMostOptions) {
      throw InvalidProblem(problem.name_of(i) + " has more than " + std::to_string(kMostOptions) +
                           " options");
    }
    int64_t slowest = 0, largest = 0;
    for (size_t k = 0; k < options.size(); ++k) {
      const auto& [t, m] = options[k];
      if (t < 0 || m < 0) {
        throw InvalidProblem(
            problem.name_of(i) + ", option " + std::to_string(k) + ": negative " +
            (t < 0 ? "time: " + std::to_string(t) + " ps" : "memory: " + std::to_string(m) + " bytes"));
      }
      slowest = std::max(slowest, t);
      largest = std::max(largest, m);
    }
    if (slowest > kLargestSum - time)
      throw InvalidProblem(problem.name_of(i) + ": the total time overflows 2^61 ps");
    if (largest > kLargestSum - memory)
      throw InvalidProblem(problem.name_of(i) + ": the total memory overflows 2^61 bytes");
    time += slowest;
    memory += largest;
  }
}

}  // namespace osdp::search
