#include "faults/errors.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace osdp::faults {
namespace {

class PlainError final : public std::runtime_error, public KnownError {
 public:
  PlainError(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept override { return kind_; }

 private:
  ErrorKind kind_;
};

std::atomic<Thrower> the_thrower{nullptr};

}  // namespace

void set_thrower(Thrower thrower) { the_thrower = thrower; }

void throw_error(ErrorKind kind, std::string message) {
  if (const Thrower thrower = the_thrower) thrower(kind, message);
  throw PlainError(kind, message);
}

std::exception_ptr make_error(ErrorKind kind, std::string message) {
  try {
    throw_error(kind, std::move(message));
  } catch (...) {
    return std::current_exception();
  }
}

std::optional<ErrorKind> kind_of(const std::exception& error) {
  const auto* known = dynamic_cast<const KnownError*>(&error);
  return known ? std::optional(known->kind()) : std::nullopt;
}

std::string without_backtrace(std::string text) {
  for (const char* trace : {"\nException raised from", "\nframe #", "\n  frame #", "\nC++ CapturedTraceback"})
    text.erase(std::min(text.find(trace), text.size()));
  return text;
}

}  // namespace osdp::faults
