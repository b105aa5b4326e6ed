// The whole test framework: CHECK, CHECK_EQ, a counter and an exit code.
#pragma once

#include <atomic>
#include <cstdio>
#include <iostream>

inline std::atomic<int> checks = 0, failures = 0;  // ranks may be threads

template <class A, class B>
void check_equal(const A& a, const B& b, const char* what, const char* file, int line) {
  ++checks;
  if (a == b) return;
  ++failures;
  std::cerr << file << ":" << line << ": " << what << ": " << a << " != " << b << "\n";
}
inline void check_true(bool ok, const char* what, const char* file, int line) {
  ++checks;
  if (ok) return;
  ++failures;
  std::cerr << file << ":" << line << ": " << what << "\n";
}

#define CHECK(what) check_true(static_cast<bool>(what), #what, __FILE__, __LINE__)
#define CHECK_EQ(a, b) check_equal(a, b, #a " == " #b, __FILE__, __LINE__)
#define CHECK_THROWS(expression, Type, part)                                                \
  do {                                                                                      \
    std::string message_ = "(nothing thrown)";                                              \
    try {                                                                                   \
      (void)(expression);                                                                   \
    } catch (const Type& e) {                                                               \
      message_ = e.what();                                                                  \
    }                                                                                       \
    if (message_.find(part) == std::string::npos) std::cerr << "got: " << message_ << "\n"; \
    check_true(message_.find(part) != std::string::npos,                                    \
               (std::string(#expression " throws ") + (part)).c_str(), __FILE__, __LINE__); \
  } while (0)

inline int report(const char* name) {
  std::printf("%s: %d checks, %d failures\n", name, checks.load(), failures.load());
  return failures == 0 && checks > 0 ? 0 : 1;
}
