// Errors of the runtime: a kind, which corresponds to a class of osdp.errors in Python, and a message that
// says what happened, where (rank, unit, phase) and what to do.
#pragma once

#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace osdp::faults {

enum class ErrorKind : int {
  Sharding = 0,  // ShardingError: a sharded model was used in a way that cannot work
  Rank,          // RankError: a rank died, hangs or raised
  Order,         // OrderError: ranks ran different modules in one step
  Replica,       // ReplicaError: replicated parameters differ between ranks
  Memory,        // OutOfMemoryError: no memory for a gather or reduction
  Gradient,      // GradientError: gradients are not finite
};
constexpr int kErrorKinds = 6;

// Note [Errors that keep their type]
// Errors reach Python through pybind11 (module hooks, methods) and through autograd's engine (hooks on
// gradients), which translates C++ exceptions by torch's rules: a torch::PyTorchError keeps its Python type,
// other exceptions become RuntimeError. So the bindings register how errors are thrown (set_thrower), and the
// runtime needs no Python header. Without a registered thrower, throw_error throws a std::runtime_error.
class KnownError {
 public:
  virtual ~KnownError() = default;
  virtual ErrorKind kind() const noexcept = 0;
};
using Thrower = void (*)(ErrorKind, std::string message);
void set_thrower(Thrower thrower);

[[noreturn]] void throw_error(ErrorKind kind, std::string message);
std::exception_ptr make_error(ErrorKind kind, std::string message);
// The kind of an exception thrown by throw_error; nullopt for any other exception.
std::optional<ErrorKind> kind_of(const std::exception& error);

// The text of a torch error without the backtrace that torch appends, which is useless to other ranks.
std::string without_backtrace(std::string text);

// The parts, formatted by a stream and concatenated.
template <typename... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// Calls throw_error unless `condition`; the message is only formatted on failure.
#define OSDP_CHECK(condition, kind, ...)                                                                 \
  do {                                                                                                   \
    if (!(condition)) [[unlikely]]                                                                       \
      ::osdp::faults::throw_error(::osdp::faults::ErrorKind::kind, ::osdp::faults::joined(__VA_ARGS__)); \
  } while (false)

}  // namespace osdp::faults
