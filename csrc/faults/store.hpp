// Store: the key-value store that the ranks of a job share. See c10d.cpp.
#pragma once

#include <optional>
#include <string>

namespace osdp::faults {

class Store {
 public:
  virtual ~Store() = default;
  // All throw std::exception if the store does not answer.
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;  // does not block; nullopt: not set
  // Sets the key unless it is set already; returns its value afterwards.
  virtual std::string set_first(const std::string& key, const std::string& value) = 0;
};

}  // namespace osdp::faults
