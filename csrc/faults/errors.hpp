// Errors of the runtime: a kind, which Python knows as a class of osdp.errors, and a message that says what
// happened, where (rank, unit, phase) and what to do.
#pragma once

#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace osdp::runtime {

enum class ErrorKind : int {
  Sharding = 0,  // ShardingError: a sharded model was used in a way that cannot work
  Rank,          // RankError: a rank died, hangs or raised
  Order,         // OrderError: ranks ran different modules in one step
  Replica,       // ReplicaError: what every rank holds alike differs
  Memory,        // OutOfMemoryError: no memory to gather or reduce into
  Gradient,      // GradientError: gradients that are not finite
};
constexpr int kErrorKinds = 6;

// Note [Errors that keep their type]
// Errors leave through pybind11 (module hooks, methods) and through autograd's engine (hooks on gradients),
// which turns C++ exceptions into Python ones by rules of torch: a torch::PyTorchError keeps its Python type,
// other exceptions become RuntimeError. So the bindings say how errors are thrown, and the runtime needs no
// Python header. Before they did, throw_error throws a std::runtime_error.
class KnownError {
 public:
  virtual ~KnownError() = default;
  virtual ErrorKind kind() const noexcept = 0;
};
using Thrower = void (*)(ErrorKind, std::string message);
void set_thrower(Thrower thrower);

[[noreturn]] void throw_error(ErrorKind kind, std::string message);
std::exception_ptr make_error(ErrorKind kind, std::string message);
// The kind of an exception thrown by throw_error; of none of ours: nullopt.
std::optional<ErrorKind> kind_of(const std::exception& error);

// What torch says of an error, without the stack trace that it appends: the part that another rank can use.
std::string without_backtrace(std::string text);

// The parts, as a stream writes them, behind each other.
template <typename... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// throw_error unless `condition`; the message is only made when needed.
#define OSDP_CHECK(condition, kind, ...)                                                                    \
  do {                                                                                                      \
    if (!(condition)) [[unlikely]]                                                                          \
      ::osdp::runtime::throw_error(::osdp::runtime::ErrorKind::kind, ::osdp::runtime::joined(__VA_ARGS__)); \
  } while (false)

}  // namespace osdp::runtime
