// The multiple-choice knapsack problem: one list of options per operator and a memory limit; choose one
// option per operator such that the total time is minimal. Everything is an integer: time in picoseconds
// (`_ps`), memory in bytes (`_bytes`).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace osdp::search {

__extension__ typedef __int128 int128;

// No sum of a valid problem exceeds this, so that sums and differences of sums stay inside int64.
inline constexpr int64_t kLargestSum = int64_t{1} << 61;

inline constexpr size_t kMostOptions = 1'000'000;  // of one operator

struct Option {
  int64_t time_ps = 0;
  int64_t memory_bytes = 0;
  bool operator==(const Option&) const = default;
};

struct Problem {
  std::vector<std::vector<Option>> operators;  // operators[i]: the options of operator i, in any order
  int64_t limit_bytes = 0;
  std::vector<std::string> names;  // for messages; empty, or one per operator
};

// A malformed problem (negative, overflowing or empty); the message names the operator.
struct InvalidProblem : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// A non-owning view of a problem: options may lie anywhere, for example in one large array, and must outlive
// the view.
struct ProblemView {
  std::vector<std::span<const Option>> operators;
  int64_t limit_bytes = 0;
  std::span<const std::string> names;

  ProblemView() = default;
  ProblemView(const Problem& problem)  // NOLINT: implicit, so that a Problem can be passed as a view
      : operators(problem.operators.begin(), problem.operators.end()),
        limit_bytes(problem.limit_bytes),
        names(problem.names) {}
  // `count` operators with `options` options each, all in one array.
  ProblemView(const Option* table, size_t count, size_t options, int64_t limit)
      : operators(count), limit_bytes(limit) {
    for (size_t i = 0; i < count; ++i) operators[i] = {table + i * options, options};
  }

  std::string name_of(size_t i) const {
    return i < names.size() && !names[i].empty() ? "operator '" + names[i] + "'"
                                                 : "operator " + std::to_string(i);
  }
};

// Throws InvalidProblem unless every operator has an option, no number is negative, and no total overflows.
void validate(const ProblemView& problem);
inline void validate(const Problem& problem) { validate(ProblemView(problem)); }

// The Lagrange multiplier of the memory limit in picoseconds per byte: the time that one more byte would
// save.
struct Multiplier {
  int64_t numerator = 0;
  int64_t denominator = 1;
  bool operator==(const Multiplier&) const = default;
};

struct Statistics {
  int64_t nodes = 0;         // partial plans examined
  int64_t groups = 0;        // groups of equal operators
  int64_t largest_list = 0;  // most partial plans stored at once
  int64_t rounds = 0;        // passes of the exact search
  int64_t matched = 0;  // groups moved to the middle list: Note [Three lists] in knapsack/core_search.cpp
  double seconds = 0;
};

enum class Status {
  Optimal,
  Feasible,
  Infeasible
};  // Feasible: stopped early; the gap is time_ps - lower_bound_ps

struct Solution {
  Status status = Status::Infeasible;
  std::vector<int> choices;  // choices[i]: index into operators[i]; empty if infeasible
  int64_t time_ps = 0;
  int64_t memory_bytes = 0;
  int64_t lower_bound_ps = 0;        // no plan is faster; equal to time_ps if optimal
  int64_t smallest_limit_bytes = 0;  // the smallest limit with a feasible plan
  Multiplier multiplier;             // the certificate checks the bound at this multiplier
  Statistics statistics;
};

// When to stop. `interrupted` is called about once a millisecond and must be cheap. A search that is limited
// by `work` only is deterministic: every machine and every rank finds the same plan, whatever its load.
struct Budget {
  double time_limit_s = 0;  // 0: none
  std::function<bool()> interrupted = {};
  double gap = 0;           // accept a plan whose time is within this fraction of the lower bound
  int64_t state_bytes = 0;  // approximate memory for lists of partial plans; 0: no limit
  int64_t* work = nullptr;  // remaining steps, shared by all parts of a search; null: no limit
  // Progress callback: receives the gap between the best plan and its bound as a fraction of the plan's time,
  // 1 without a plan. It does not influence the search.
  std::function<void(double)> tell_gap = {};
};

// Checks a Budget, at most once every few thousand steps of work.
class Stopwatch {
 public:
  explicit Stopwatch(const Budget& budget) : budget_(budget), start_(Clock::now()), asked_(start_) {}

  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  bool stopped() const { return stopped_; }

  // Reports the memory of the search's lists; stops and returns true if it exceeds the budget.
  bool too_large(size_t bytes) {
    if (budget_.state_bytes > 0 && static_cast<int64_t>(bytes) > budget_.state_bytes) stopped_ = true;
    return stopped_;
  }

  // Counts `work` steps (a few nanoseconds each); true once the budget is spent.
  bool spent(int64_t work = 1) { return (credit_ -= work) > 0 || stopped_ ? stopped_ : ask(); }

  // Checks the budget at once.
  bool ask() {
    if (stopped_) return true;
    const int64_t done = kStepsBetweenQuestions - credit_;
    credit_ = kStepsBetweenQuestions;
    if (budget_.work != nullptr && (*budget_.work -= done) <= 0) return stopped_ = true;
    const auto now = Clock::now();
    if (budget_.time_limit_s > 0 &&
        std::chrono::duration<double>(now - start_).count() >= budget_.time_limit_s) {
      return stopped_ = true;
    }
    if (budget_.interrupted && now - asked_ >= std::chrono::milliseconds(1)) {
      asked_ = now;
      stopped_ = budget_.interrupted();
    }
    return stopped_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kStepsBetweenQuestions = 20000;
  const Budget& budget_;
  Clock::time_point start_;
  Clock::time_point asked_;
  int64_t credit_ = kStepsBetweenQuestions;
  bool stopped_ = false;
};

}  // namespace osdp::search
